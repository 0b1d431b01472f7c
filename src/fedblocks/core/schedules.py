"""Numbers that change from round to round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Schedule(Protocol):
    """A number as a function of the round."""

    def __call__(self, round: int) -> float: ...


@dataclass(frozen=True)
class Milestones:
    """Multiplied by `factor` at each of the given rounds."""

    start: float
    rounds: tuple[int, ...]
    factor: float = 0.1

    def __call__(self, round: int) -> float:
        return self.start * self.factor ** sum(round >= r for r in self.rounds)


@dataclass(frozen=True)
class Exponential:
    """From `start` to `end` in `rounds` rounds, by a constant factor a round, then constant."""

    start: float
    end: float
    rounds: int

    def __call__(self, round: int) -> float:
        share = min(round / self.rounds, 1.0)
        return float(self.start * (self.end / self.start) ** share)


def at(value: float | Schedule, round: int) -> float:
    """The value of a number or a schedule in this round."""
    return float(value(round)) if callable(value) else float(value)
