"""Numbers that change from round to round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from torch import Tensor

Number = TypeVar("Number", float, Tensor)  # a tensor where a captured graph reads the round anew


class Schedule(Protocol):
    """A number as a function of the round."""

    def __call__(self, round: Any) -> Any: ...


@dataclass(frozen=True)
class Milestones:
    """Multiplied by `factor` at each of the given rounds."""

    start: float
    rounds: tuple[int, ...]
    factor: float = 0.1

    def __call__(self, round: Number) -> Number:
        passed: Any = sum(round >= r for r in self.rounds)
        return self.start * self.factor**passed  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Exponential:
    """From `start` to `end` in `rounds` rounds, by a constant factor a round, then constant."""

    start: float
    end: float
    rounds: int

    def __call__(self, round: Number) -> Number:
        share: Any = round / self.rounds
        share = share.clamp(max=1.0) if isinstance(share, Tensor) else min(share, 1.0)
        return self.start * (self.end / self.start) ** share  # type: ignore[no-any-return]


def at(value: float | Schedule, round: Any) -> Any:
    """The value of a number or a schedule in this round: a number, or a tensor if the round is one."""
    return value(round) if callable(value) else float(value)
