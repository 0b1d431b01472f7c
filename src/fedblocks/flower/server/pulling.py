"""Fetch the answers of nodes, each by itself and within a bound: what is wrong with one costs its
node alone.

Flower's own `pull_messages` puts all answers together in one go. An answer that cannot be put
together would raise there and hide the others, and one whose pieces are named again and again would
fill the memory before anybody looks.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

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
log = logging.getLogger(__name__)


def pull(grid: Grid, limits: Mapping[str, int]) -> list[tuple[str, Message]]:
    """Return the answers that have come to these messages, each of at most so many bytes.

    None come while the SuperLink fails; it says at the next call what was lost.
    """
    try:
        if isinstance(grid, HttpGrid):
            return list(_answers(grid, limits)) if limits else []
        come = grid.pull_messages(list(limits)) if limits else []
        return [(message.metadata.reply_to_message_id, message) for message in come]
    except httpx.HTTPStatusError as error:
        refuse_lasting(error)
        return []


def refuse_lasting(error: httpx.HTTPStatusError) -> None:
    """Raise what will not pass by itself; a SuperLink that failed (its database was
    busy) is asked again.
    """
    if error.response.status_code < httpx.codes.INTERNAL_SERVER_ERROR:
        raise error
    log.warning("the SuperLink failed and is asked again: %s", error)


def _answers(grid: HttpGrid, limits: Mapping[str, int]) -> Iterator[tuple[str, Message]]:
    """Yield answers, by the messages that they answer as the SuperLink has it, whatever
    they say of themselves.
    """
    come = grid._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=list(limits)))
    for head, tree in zip(come.messages_list, come.message_object_trees, strict=True):
        asked = head.metadata.reply_to_message_id
        try:
            yield asked, _fetch(grid, head.metadata.message_id, tree, limits.get(asked, 0))
        except (ObjectPullError, httpx.TransportError) as error:
            yield asked, failure(asked, UNAVAILABLE, error)
        except httpx.HTTPStatusError as error:
            is_passing = error.response.status_code >= httpx.codes.INTERNAL_SERVER_ERROR
            yield asked, failure(asked, UNAVAILABLE if is_passing else UNUSABLE, error)
        # whatever a client can think of; it must not cost the others their round
        except Exception as error:
            yield asked, failure(asked, UNUSABLE, error)


def _fetch(grid: HttpGrid, name: str, tree: Any, most: int) -> Message:
    """Fetch the pieces of an answer and put them together."""
    client, run = grid._runtime_client, grid.run.run_id
    metered = _metered(make_pull_object_fn_protobuf(client.PullObject, grid.node, run), most)
    confirmation = ConfirmMessageReceivedRequest(node=grid.node, run_id=run, message_object_id=name)
    names = list(dict.fromkeys(part.object_id for part in iterate_object_tree(tree)))
    try:
        contents = pull_objects(names, metered)
    except TooLargeError:
        client.ConfirmMessageReceived(confirmation)  # so that the SuperLink throws it away
        raise
    client.ConfirmMessageReceived(confirmation)
    if (size := count_assembled_bytes(contents)) > most:
        raise TooLargeError(f"arrays of {size} bytes, and at most {most} were expected")
    message = inflate_object_from_contents(name, contents)
    if not isinstance(message, Message):
        raise TypeError("it is not a message")
    return message


def _metered(fetch: Callable[[str], bytes], most: int) -> Callable[[str], bytes]:
    """Count the bytes that are fetched, by several threads, and stop above a bound."""
    lock = threading.Lock()
    total = 0

    def fetch_counted(name: str) -> bytes:
        nonlocal total
        content = fetch(name)
        with lock:
            total += len(content)
        if total > most:
            raise TooLargeError(f"more than the {most} bytes that were expected")
        return content

    return fetch_counted


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
