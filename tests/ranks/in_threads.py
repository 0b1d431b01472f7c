"""Ranks as threads of this process that take turns: quick, and every test sees all their code.

One thread runs at a time; in an exchange it lets the others go on until all have come to it.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import pytest
import torch
from torch import Tensor

from fedblocks.runs.ranks import ranks as exchange
from fedblocks.runs.ranks import run as starting
from fedblocks.runs.ranks.ranks import Ranks

PATIENCE = 60.0  # seconds for an exchange: more means that the ranks do not fit together


class Threads:
    """What `torch.distributed` does, between threads."""

    def __init__(self, count: int) -> None:
        self.turn, self.all_here = threading.Lock(), threading.Barrier(count)
        self.slots: list[Any] = [None] * count
        self.letters: dict[tuple[int, int], SimpleQueue[Tensor]] = defaultdict(SimpleQueue)
        self.own = threading.local()

    def _everybody(self, value: Tensor) -> list[Tensor]:
        """What each rank has brought to an exchange."""
        self.slots[self.own.rank] = value.clone()
        self.turn.release()
        try:
            self.all_here.wait(PATIENCE)
            values = list(self.slots)
            self.all_here.wait(PATIENCE)
        finally:
            self.turn.acquire()
        return values

    def all_gather(self, into: list[Tensor], value: Tensor, group: Any) -> None:
        for place, own in zip(into, self._everybody(value), strict=True):
            place.copy_(own)

    def gather(self, value: Tensor, into: list[Tensor] | None, dst: int, group: Any) -> None:
        values = self._everybody(value)
        assert (into is not None) == (self.own.rank == dst)
        for place, own in zip(into or [], values if into else [], strict=True):
            place.copy_(own)

    def all_reduce(self, value: Tensor, group: Any) -> None:
        value.copy_(torch.stack(self._everybody(value)).sum(0))

    def broadcast(self, value: Tensor, source: int, group: Any) -> None:
        value.copy_(self._everybody(value)[source])

    def send(self, value: Tensor, to: int, group: Any) -> None:
        self.letters[self.own.rank, to].put(value.clone())

    def recv(self, value: Tensor, sender: int, group: Any) -> None:
        self.turn.release()
        try:
            letter = self.letters[sender, self.own.rank].get(timeout=PATIENCE)
        finally:
            self.turn.acquire()
        value.copy_(letter)

    def get_backend(self, group: Any) -> str:
        return "threads"


def play_in_threads(
    count: int, work: Callable[[Ranks], Any], monkeypatch: pytest.MonkeyPatch
) -> list[Any]:
    """What some work of each rank ends with, or how it fails."""
    threads = Threads(count)
    for module in (exchange, starting):
        monkeypatch.setattr(module, "dist", threads)
    monkeypatch.setattr(exchange, "GRACE", 0.0)
    ends: list[Any] = [None] * count

    def carry_out(rank: int) -> None:
        threads.own.rank = rank
        with threads.turn:
            try:
                ends[rank] = work(Ranks(rank, count, PATIENCE))
            except BaseException as error:
                ends[rank] = error
                threads.all_here.abort()

    players = [threading.Thread(target=carry_out, args=(rank,)) for rank in range(count)]
    for player in players:
        player.start()
    for player in players:
        player.join(4 * PATIENCE)
    return ends
