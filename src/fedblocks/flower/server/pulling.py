"""Fetch the answers of nodes, each by itself and within a bound: what is wrong with one costs its
node alone.

Flower's own `pull_messages` puts all answers together in one go. An answer that cannot be put
together would raise there and hide the others, and one whose pieces are named again and again would
fill the memory before anybody looks.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

import httpx
from flwr.app import Error, Message, Metadata
from flwr.app.message import make_message
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectUnavailableError,
    inflate_object_from_contents,
    pull_objects,
)
from flwr.superlink.grid.http_grid import HttpGrid

from fedblocks.flower.wire.messages import TooLargeError
from fedblocks.flower.wire.records import count_assembled_bytes

# bytes of an answer beside the arrays of the plan: headers, names, how Flower packs them
ROOM = 64 * 2**20
# Flower's errors: a message, or the answer to it, did not arrive whole; its node is there
LOST = {3, 4}
UNUSABLE = 1000  # our own error, which Flower does not have: the answer is there and cannot be read
UNAVAILABLE = 3  # Flower's error of an answer that did not arrive whole
# seconds between two looks for the missing pieces of an answer: at first, and in the end
SOON, SELDOM = 0.25, 4.0
LOOK, BATCH = 1.0, 256  # seconds that a look may take, and pieces that are fetched at a time
log = logging.getLogger(__name__)


class Inbox:
    """The answers to messages; those that come in pieces are waited for beside all others.

    A client says that its answer comes before it sends the pieces, and may send them slowly or
    never: nobody else's answer is held up by it.
    """

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self._arriving: dict[str, _Arriving] = {}  # by the message that it answers

    def pull(self, limits: Mapping[str, int]) -> list[tuple[str, Message]]:
        """Return the answers that have come to these messages, each of at most so many bytes;
        forget what has come to others.

        None come while the SuperLink fails; it says at the next call what was lost.
        """
        self._arriving = {asked: some for asked, some in self._arriving.items() if asked in limits}
        if not limits:
            return []
        try:
            if isinstance(self.grid, HttpGrid):
                self._begin(self.grid, limits)
                return list(self._whole(self.grid))
            come = self.grid.pull_messages(list(limits))
            return [(message.metadata.reply_to_message_id, message) for message in come]
        except httpx.HTTPStatusError as error:
            refuse_lasting(error)
            return []

    def _begin(self, grid: HttpGrid, limits: Mapping[str, int]) -> None:
        """Learn which answers come, by the messages that they answer as the SuperLink has it,
        whatever they say of themselves.
        """
        unheard = [asked for asked in limits if asked not in self._arriving]
        try:
            self._learn(grid, unheard, limits)
        except httpx.HTTPStatusError as error:
            refuse_lasting(error)
            self._begin_each(grid, unheard, limits)

    def _begin_each(self, grid: HttpGrid, unheard: list[str], limits: Mapping[str, int]) -> None:
        """Ask for each answer by itself: one that the SuperLink cannot read fails alone. Whichever
        the time is not enough for are asked for at the next look, in another order.
        """
        end = time.monotonic() + LOOK
        for asked in random.sample(unheard, len(unheard)):
            if time.monotonic() > end:
                return
            try:
                self._learn(grid, [asked], limits)
            except httpx.HTTPStatusError as error:
                refuse_lasting(error)

    def _learn(self, grid: HttpGrid, unheard: list[str], limits: Mapping[str, int]) -> None:
        come = grid._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=unheard))
        for head, tree in zip(come.messages_list, come.message_object_trees, strict=True):
            asked = head.metadata.reply_to_message_id
            names = list(dict.fromkeys(part.object_id for part in iterate_object_tree(tree)))
            most = limits.get(asked, 0)
            self._arriving[asked] = _Arriving(head.metadata.message_id, names, most)

    def _whole(self, grid: HttpGrid) -> Iterator[tuple[str, Message]]:
        """Yield the answers that are there, and what stands for those that cannot be used."""
        for asked, answer in [*self._arriving.items()]:
            message: Message | None
            try:
                message = answer.fetch(grid)
            except (ObjectPullError, httpx.TransportError) as error:
                message = failure(asked, UNAVAILABLE, error)
            except httpx.HTTPStatusError as error:
                is_passing = error.response.status_code >= httpx.codes.INTERNAL_SERVER_ERROR
                message = failure(asked, UNAVAILABLE if is_passing else UNUSABLE, error)
            # whatever a client can think of; it must not cost the others their round
            except Exception as error:
                message = failure(asked, UNUSABLE, error)
            if message is not None:
                del self._arriving[asked]
                yield asked, message


def refuse_lasting(error: httpx.HTTPStatusError) -> None:
    """Raise what will not pass by itself; a SuperLink that failed (its database was
    busy) is asked again.
    """
    if error.response.status_code < httpx.codes.INTERNAL_SERVER_ERROR:
        raise error
    log.warning("the SuperLink failed and is asked again: %s", error)


@dataclass(eq=False)
class _Arriving:
    """An answer whose pieces come."""

    name: str
    names: list[str]  # of all pieces
    most: int  # bytes
    pieces: dict[str, bytes] = field(default_factory=dict)
    size: int = 0  # bytes of these
    looks: int = 0  # for those that are missing
    due: float = 0.0  # when the next one is
    lock: threading.Lock = field(default_factory=threading.Lock)

    def fetch(self, grid: HttpGrid) -> Message | None:
        """Fetch the pieces that are there; return the answer if none is missing."""
        if time.monotonic() < self.due:
            return None
        client, run = grid._runtime_client, grid.run.run_id
        confirm = partial(
            client.ConfirmMessageReceived,
            ConfirmMessageReceivedRequest(node=grid.node, run_id=run, message_object_id=self.name),
        )
        fetch_one = make_pull_object_fn_protobuf(client.PullObject, grid.node, run)
        try:
            self._fetch_pieces(partial(self._fetch_piece, fetch_one))
        except TooLargeError:
            confirm()  # so that the SuperLink throws it away
            raise
        if len(self.pieces) < len(self.names):
            self.due = time.monotonic() + min(SOON * 2**self.looks, SELDOM)
            self.looks += 1
            return None
        confirm()
        return self._put_together()

    def _fetch_pieces(self, fetch_one: Callable[[str], bytes]) -> None:
        """Fetch what is missing, some pieces at a time, until one has not come yet or others have
        waited for long: a client may name as many pieces as it likes.
        """
        end = time.monotonic() + LOOK
        missing = [name for name in self.names if name not in self.pieces]
        while missing and time.monotonic() < end:
            some, missing = missing[:BATCH], missing[BATCH:]
            pull_objects(some, fetch_one)
            if any(name not in self.pieces for name in some):
                return

    def _fetch_piece(self, fetch_one: Callable[[str], bytes], name: str) -> bytes:
        """Keep a piece if it is there; several threads do this, up to a bound of all bytes."""
        try:
            content = fetch_one(name)
        except ObjectUnavailableError:
            return b""
        with self.lock:
            self.pieces[name] = content
            self.size += len(content)
            if self.size > self.most:
                raise TooLargeError(f"more than the {self.most} bytes that were expected")
        return content

    def _put_together(self) -> Message:
        if (size := count_assembled_bytes(self.pieces)) > self.most:
            raise TooLargeError(f"arrays of {size} bytes, and at most {self.most} were expected")
        message = inflate_object_from_contents(self.name, self.pieces)
        if not isinstance(message, Message):
            raise TypeError("it is not a message")
        return message


def failure(asked: str, code: int, error: Exception) -> Message:
    """Return what stands for an answer that cannot be used."""
    metadata = Metadata(
        run_id=0,
        message_id="",
        src_node_id=0,
        dst_node_id=0,
        message_type="system",
        group_id="",
        ttl=0.0,
        reply_to_message_id=asked,
        created_at=time.time(),
    )
    reason = f"{type(error).__name__}: {str(error)[:200]}"
    return make_message(metadata=metadata, error=Error(code, reason))
