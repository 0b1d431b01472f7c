"""Ranks as threads of this process that take turns: quick, and every test sees all their code.

One thread runs at a time; in an exchange it lets the others go on until all have come to it.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable
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
        self.count, self.own = count, threading.local()
        self.turn = threading.Condition()
        self.tables: dict[int, dict[int, Tensor]] = defaultdict(dict)  # exchange, rank -> value
        self.letters: dict[tuple[int, int], deque[Tensor]] = defaultdict(deque)
        self.gone: set[int] = set()

    def _everybody(self, value: Tensor) -> list[Tensor]:
        """What each rank has brought to an exchange; like torch, of tensors in one piece only."""
        assert value.is_contiguous()
        self.own.exchange += 1
        table = self.tables[self.own.exchange]
        table[self.own.rank] = value.clone()
        self.turn.notify_all()
        self.turn.wait_for(lambda: len(table) == self.count or self.gone - {*table}, PATIENCE)
        if len(table) < self.count:
            raise RuntimeError("a rank does not come to an exchange")
        return [table[rank] for rank in range(self.count)]

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
        self.letters[self.own.rank, to].append(value.clone())
        self.turn.notify_all()

    def recv(self, value: Tensor, sender: int, group: Any) -> None:
        letters = self.letters[sender, self.own.rank]
        self.turn.wait_for(lambda: letters or sender in self.gone, PATIENCE)
        if not letters:
            raise RuntimeError("a rank does not write")
        value.copy_(letters.popleft())

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
        threads.own.rank, threads.own.exchange = rank, 0
        with threads.turn:
            try:
                ends[rank] = work(Ranks(rank, count, PATIENCE))
            except BaseException as error:
                ends[rank] = error
            threads.gone.add(rank)
            threads.turn.notify_all()

    players = [threading.Thread(target=carry_out, args=(rank,)) for rank in range(count)]
    for player in players:
        player.start()
    for player in players:
        player.join(4 * PATIENCE)
    return ends
