"""Numbers that change from round to round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Protocol, TypeVar, runtime_checkable

from torch import Tensor

from fedblocks.core.checks import Checked
from fedblocks.core.options import AtLeast, Help, Positive

Number = TypeVar("Number", float, Tensor)  # a tensor where a captured graph reads the round anew


@runtime_checkable
class Schedule(Protocol):
    """A number as a function of the round.

    Limits of an option are checked at its rounds `turns`, between which it only rises or only
    falls; without them, at the first round.
    """

    def __call__(self, round: Any) -> Any: ...


@dataclass(frozen=True)
class Milestones(Checked):
    """Multiplied by `factor` at each of the given rounds."""

    start: Annotated[float, Positive(), Help("the first value")]
    rounds: Annotated[tuple[int, ...], AtLeast(1), Help("where it changes")]
    factor: Annotated[float, Positive(), Help("what it is multiplied by there")] = 0.1

    @property
    def turns(self) -> tuple[int, ...]:
        return 0, *self.rounds

    def __call__(self, round: Number) -> Number:
        passed: Any = sum(round >= r for r in self.rounds)
        return self.start * self.factor**passed  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Exponential(Checked):
    """From `start` to `end` in `rounds` rounds, by a constant factor a round, then constant."""

    start: Annotated[float, Positive(), Help("the first value")]
    end: Annotated[float, Positive(), Help("the last value")]
    rounds: Annotated[int, AtLeast(1), Help("until it is reached")]

    @property
    def turns(self) -> tuple[int, int]:
        return 0, self.rounds

    def __call__(self, round: Number) -> Number:
        share: Any = round / self.rounds
        share = share.clamp(max=1.0) if isinstance(share, Tensor) else min(share, 1.0)
        return self.start * (self.end / self.start) ** share  # type: ignore[no-any-return]


def at(value: float | Schedule, round: Any) -> Any:
    """The value of a number or a schedule in this round: a number, or a tensor if the
    round is one.
    """
    return value(round) if callable(value) else float(value)
