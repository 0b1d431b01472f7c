"""Numbers that change from round to round."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any, Protocol, Self, TypeVar, runtime_checkable

from torch import Tensor

from fedblocks.core.checks import Checked
from fedblocks.core.errors import UserError
from fedblocks.core.options import AnyNumber, AtLeast, Conflict, Help, Positive

Number = TypeVar("Number", float, Tensor)  # a tensor where a captured graph reads the round anew


@runtime_checkable
class Schedule(Protocol):
    """A number as a function of the round.

    Limits of an option are checked at its rounds `turns`, between which it only rises or only
    falls; without them, at the first round. A schedule that goes over the run's own rounds has
    `is_open` until `over(rounds)` has said how many these are.
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


Rounds = Annotated[
    int | float,
    Positive(),
    Help("until `end` is reached; a fraction such as 0.5: of the run's own rounds"),
]


@dataclass(frozen=True)
class Glide(Checked):
    """From `start` to `end`, then constant.

    A whole number of rounds is that number. A fraction is a part of the run, whatever its length:
    `over` makes it a whole number, once the run is known.
    """

    start: Annotated[float, AnyNumber(), Help("the first value")]
    end: Annotated[float, AnyNumber(), Help("the last value")]
    rounds: Rounds = 1.0

    def conflicts(self) -> list[Conflict]:
        if isinstance(self.rounds, int) or self.rounds <= 1:
            return []
        return [
            Conflict("rounds", "is more than the whole run", "use a whole number, or up to 1.0")
        ]

    @property
    def turns(self) -> tuple[int, ...]:
        return 0, self._whole()

    @property
    def is_open(self) -> bool:
        """Whether it does not know yet how many rounds the run has."""
        return isinstance(self.rounds, float)

    def over(self, rounds: int) -> Self:
        """The same schedule in a run of so many rounds."""
        if not self.is_open:
            return self
        return replace(self, rounds=max(1, round(self.rounds * rounds)))

    def share(self, round: Number) -> Number:
        """How much of the way is behind: 0 to 1."""
        share: Any = round / self._whole()
        share = share.clamp(max=1.0) if isinstance(share, Tensor) else min(share, 1.0)
        return share  # type: ignore[no-any-return]

    def _whole(self) -> int:
        if isinstance(self.rounds, int):
            return self.rounds
        message = f"{self} does not know how many rounds the run has"
        raise UserError(message, "say it, `method.over(rounds)`, or give a whole number of rounds")


@dataclass(frozen=True)
class Exponential(Glide):
    """From `start` to `end` in `rounds` rounds, by a constant factor a round, then constant."""

    start: Annotated[float, Positive(), Help("the first value")]
    end: Annotated[float, Positive(), Help("the last value")]
    rounds: Rounds = 1.0

    def __call__(self, round: Number) -> Number:
        ratio = self.end / self.start
        return self.start * ratio ** self.share(round)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Ramp(Glide):
    """From `start` to `end` in `rounds` rounds, by a constant difference a round, then constant."""

    def __call__(self, round: Number) -> Number:
        return self.start + (self.end - self.start) * self.share(round)


@dataclass(frozen=True)
class Cosine(Glide):
    """Up to `start` in the first `warmup` rounds, then along half a cosine to `end`, then constant.

    Round t of the warm-up has (t + 1) / (warmup + 1) of `start`, so that no round has 0.
    """

    start: Annotated[float, Positive(), Help("the highest value")]
    end: Annotated[float, AtLeast(0), Help("the last value")] = 0.0
    rounds: Rounds = 1.0
    warmup: Annotated[int, AtLeast(0), Help("rounds until `start` is reached")] = 0

    def conflicts(self) -> list[Conflict]:
        if isinstance(self.rounds, int) and self.warmup >= self.rounds:
            return [Conflict("warmup", "leaves no round to fall in", "use fewer than `rounds`")]
        return super().conflicts()

    @property
    def turns(self) -> tuple[int, ...]:
        # its last round, not the end after that, which may be 0 where no value of it may
        return 0, self.warmup, max(0, self._whole() - 1)

    def __call__(self, round: Number) -> Number:
        fall = max(1, self._whole() - self.warmup)
        share = _between(0.0, (round - self.warmup) / fall, 1.0)
        cosine = (
            share.mul(math.pi).cos() if isinstance(share, Tensor) else math.cos(math.pi * share)
        )
        value: Any = self.end + (self.start - self.end) * (1 + cosine) / 2
        return value * _between(0.0, (round + 1) / (self.warmup + 1), 1.0)  # type: ignore[no-any-return]


def _between(low: float, value: Any, high: float) -> Any:
    if isinstance(value, Tensor):
        return value.clamp(low, high)
    return min(max(value, low), high)


def is_open(value: Any) -> bool:
    """Whether an option is a schedule that waits for the number of the run's rounds."""
    return bool(getattr(value, "is_open", False))


def at(value: float | Schedule, round: Any) -> Any:
    """The value of a number or a schedule in this round: a number, or a tensor where the round
    is one or clients have numbers of their own.
    """
    if callable(value):
        return value(round)
    return value if isinstance(value, Tensor) else float(value)
