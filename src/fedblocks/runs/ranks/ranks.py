"""The processes of one run, and what they say to each other: JSON and tensors, never pickles."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from fedblocks.runs.ranks.errors import RankLost, error_of, text_of
from fedblocks.runs.storage.environment import start_time
from fedblocks.runs.storage.trees import Tree, pack, unpack

Result = TypeVar("Result")
BRIEF = 4088  # bytes of a message that travels together with its length
GRACE = 2.0  # seconds in which a process whose connections are closed is seen to be gone


class Peer(NamedTuple):
    """The process of a rank, so that one that ended can be named."""

    host: str
    pid: int
    started: str

    def is_gone(self) -> bool:
        try:
            state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            return True
        return state in "ZX" or start_time(self.pid) != self.started


@dataclass(frozen=True, eq=False)
class Ranks:
    """All ranks, as one of them sees them. Every function here is called by all at once, unless it
    says otherwise; a rank that is lost ends all others with the same message.
    """

    number: int  # of this rank; 0 writes and speaks
    count: int
    patience: float  # seconds that a rank waits for the others
    group: Any = None  # of torch.distributed; None: the one of all processes
    peers: Sequence[Peer] = ()
    broken: list[str] = field(default_factory=list, repr=False)  # why they are together no more

    def with_peers(self, peers: Sequence[Peer]) -> Ranks:
        return replace(self, peers=peers)

    @property
    def first(self) -> bool:
        """Whether this rank is the one that writes and speaks."""
        return self.number == 0

    def still_together(self) -> Ranks:
        if self.broken:
            raise RankLost(f"the ranks are no longer together: {self.broken[0]}", "start them anew")
        return self

    # what ranks say

    def share(self, value: Any) -> list[Any]:
        """What every rank says, by rank; heard by all."""
        return [json.loads(content) for content in self.share_bytes(json.dumps(value).encode())]

    def tell(self, value: Any = None) -> Any:
        """What the first rank says; the others give nothing."""
        content = json.dumps(value).encode() if self.first else b""
        brief = _brief(content)
        self.broadcast(brief)
        if _length(brief) <= BRIEF:
            return json.loads(_content(brief))
        message = _bytes(content) if self.first else torch.empty(_length(brief), dtype=torch.uint8)
        self.broadcast(message)
        return json.loads(message.numpy().tobytes())

    def share_tree(self, tree: Tree) -> list[dict[str, Any]]:
        """The tree of every rank, by rank; heard by all."""
        return [_from_bytes(content) for content in self.share_bytes(_to_bytes(tree))]

    def collect_tree(self, tree: Tree) -> list[dict[str, Any]]:
        """The tree of every rank, by rank, at the first; nothing at the others."""
        content = _bytes(_to_bytes(tree))
        sizes = self._sizes(len(content))
        into = [torch.empty(max(sizes), dtype=torch.uint8) for _ in sizes] if self.first else None
        with self.in_touch():
            dist.gather(_padded(content, max(sizes)), into, dst=0, group=self.group)
        return [
            _from_bytes(own[:size].numpy().tobytes())
            for own, size in zip(into or [], sizes if into else [], strict=True)
        ]

    def share_bytes(self, content: bytes) -> list[bytes]:
        """What every rank says, by rank; one exchange if all are brief."""
        briefs = [_brief(b"") for _ in range(self.count)]
        with self.in_touch():
            dist.all_gather(briefs, _brief(content), group=self.group)
        sizes = [_length(brief) for brief in briefs]
        if max(sizes) <= BRIEF:
            return [_content(brief) for brief in briefs]
        into = [torch.empty(max(sizes), dtype=torch.uint8) for _ in sizes]
        with self.in_touch():
            dist.all_gather(into, _padded(_bytes(content), max(sizes)), group=self.group)
        return [own[:size].numpy().tobytes() for own, size in zip(into, sizes, strict=True)]

    def _sizes(self, own: int) -> list[int]:
        into = [torch.empty(1, dtype=torch.long) for _ in range(self.count)]
        with self.in_touch():
            dist.all_gather(into, torch.tensor([own]), group=self.group)
        return [int(size) for size in into]

    def send(self, tree: Tree, to: int) -> None:
        """A tree for one other rank, which has to `receive` it; nobody else takes part."""
        content = _bytes(_to_bytes(tree))
        with self.in_touch():
            dist.send(torch.tensor([len(content)]), to, group=self.group)
            dist.send(content, to, group=self.group)

    def receive(self, sender: int) -> dict[str, Any]:
        size = torch.zeros(1, dtype=torch.long)
        with self.in_touch():
            dist.recv(size, sender, group=self.group)
            content = torch.empty(int(size), dtype=torch.uint8)
            dist.recv(content, sender, group=self.group)
        return _from_bytes(content.numpy().tobytes())

    # what ranks compute together, on the device of the tensors

    def add_up(self, values: Tensor) -> None:
        """Replace the values of every rank by their sum."""
        with self.in_touch():
            dist.all_reduce(values, group=self.group)

    def broadcast(self, values: Tensor) -> None:
        """Replace the values of every rank by those of the first."""
        with self.in_touch():
            dist.broadcast(values, 0, group=self.group)

    def join_rows(self, rows: Tensor, counts: Sequence[int], everywhere: bool) -> Tensor | None:
        """The rows of all ranks, [counts[rank], ...] each, one rank after the other: at the first
        rank, or everywhere.
        """
        most = max(counts)
        padded = rows.new_zeros(most, *rows.shape[1:])
        padded[: len(rows)] = rows
        room = self.first or everywhere
        into = [torch.empty_like(padded) for _ in counts] if room else None
        with self.in_touch():
            if everywhere:
                dist.all_gather(into, padded, group=self.group)
            else:
                dist.gather(padded, into, dst=0, group=self.group)
        if into is None:
            return None
        return torch.cat([own[:count] for own, count in zip(into, counts, strict=True)])

    # errors, and work of the first rank alone

    def together(self, work: Callable[[], Result]) -> Result:
        """Some work of every rank; if it fails at one of them, the same error ends it at all."""
        error: Exception | None = None
        try:
            result = work()
        except RankLost:
            raise
        except Exception as own:
            error = own
        self.agree(error)
        return result

    def agree(self, error: Exception | None, value: Any = None) -> list[Any]:
        """What every rank says, or the error of the first that has one, at all of them."""
        said = self.share({"error": text_of(error), "value": value})
        for number, own in enumerate(said):
            if own["error"] is not None:
                raise error_of(own["error"], number, self.number, error)
        return [own["value"] for own in said]

    def lead(self, work: Callable[[], Any], serve: Callable[[Any], None]) -> Any:
        """Work of the first rank alone, whose result (plain JSON values) all get; meanwhile the
        others `serve` what it asks of them with `tell`.
        """
        if not self.first:
            while not {"end", "error"} & (message := self.tell()).keys():
                serve(message)
            if "error" in message:
                raise error_of(message["error"], 0, self.number, None)
            return message["end"]
        try:
            result = work()
        except RankLost:
            raise
        except (Exception, KeyboardInterrupt) as error:
            self.tell({"error": text_of(error)})
            raise
        self.tell({"end": result})
        return result

    @contextmanager
    def in_touch(self) -> Iterator[None]:
        """Errors of an exchange mean that a rank is gone."""
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self.end_lost(error)

    def end_lost(self, cause: BaseException | None = None) -> NoReturn:
        """End this rank, since another is gone: say which, where that can be seen."""
        with suppress(ValueError):  # not in the main thread
            # torchrun now ends the ranks that are left, and this one has something to say first
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        gone = self._gone()
        message = f"{gone}; this was rank {self.number} of {self.count}"
        self.broken.append(gone)
        lost = RankLost(message, "start all ranks again")
        alive = [n for n, peer in enumerate(self.peers) if f"rank {n} " not in gone]
        vars(lost)["silent"] = self.number != min(alive, default=self.number)
        raise lost from cause

    def _gone(self) -> str:
        here = [(n, p) for n, p in enumerate(self.peers) if p.host == self._host]
        deadline = time.monotonic() + GRACE
        while time.monotonic() < deadline:
            for number, peer in here:
                if peer.pid != os.getpid() and peer.is_gone():
                    return f"rank {number} (process {peer.pid}) has ended"
            time.sleep(0.05)
        waited = f"did not answer within {self.patience:.0f} s, or its connection broke"
        return f"another rank {waited}"

    @property
    def _host(self) -> str:
        return self.peers[self.number].host if self.peers else ""

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Inside, SIGTERM, which torchrun sends when a rank has ended, ends this one with a
        message.
        """

        def ended(number: int, frame: FrameType | None) -> None:
            self.end_lost()

        before: Any = None
        with suppress(ValueError):  # not in the main thread
            before = signal.signal(signal.SIGTERM, ended)
        try:
            yield
        finally:
            if before is not None and not self.broken:
                signal.signal(signal.SIGTERM, before)


def _brief(content: bytes) -> Tensor:
    """The length of a message, and the message if it is short."""
    short = content if len(content) <= BRIEF else b""
    return _padded(_bytes(len(content).to_bytes(8, "little") + short), BRIEF + 8)


def _length(brief: Tensor) -> int:
    return int.from_bytes(brief[:8].numpy().tobytes(), "little")


def _content(brief: Tensor) -> bytes:
    return brief[8 : 8 + _length(brief)].numpy().tobytes()


def _bytes(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content) or bytearray(1), dtype=torch.uint8)[: len(content)]


def _padded(content: Tensor, size: int) -> Tensor:
    wide = torch.zeros(size, dtype=torch.uint8)
    wide[: len(content)] = content
    return wide


def _to_bytes(tree: Tree) -> bytes:
    tensors, structure = pack(tree)
    return len(structure).to_bytes(8, "little") + structure + tensors


def _from_bytes(content: bytes) -> dict[str, Any]:
    size = int.from_bytes(content[:8], "little")
    return unpack(content[8 + size :], content[8 : 8 + size])
