"""Ends before the last round. Ctrl-C: the first lets the round end and stores it, the second stops
at once; nothing stored is lost either way. `StopRun`: a program has seen enough.
"""

from __future__ import annotations

import math
import signal
import threading
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Literal

from fedblocks.core.errors import UserError
from fedblocks.runs.progress import OnNote, RoundDone, warn_of
from fedblocks.runs.storage.record import Note


class StopRun(Exception):
    """Raised by `on_round`: the run ends here, stored and finished; `resume` would go on."""


@dataclass
class EarlyStopping:
    """A listener, `on_round=EarlyStopping(5)`: ends a run whose main metric did not get better in
    so many evaluations; models are judged on validation data, never on test data. Means over fewer
    clients than before are not comparable and do not count; one over more is the new measure.
    """

    patience: int  # evaluations without a better one
    least: float = 0.0  # by how much it must be better to count
    part: Literal["validation", "train"] = "validation"
    best: float = field(default=-math.inf, init=False)  # the higher the better
    waited: int = field(default=0, init=False)
    counted: int = field(default=0, init=False)  # the most clients in a mean so far
    tell: OnNote = field(default_factory=lambda: warn_of, init=False, repr=False)
    has_told: bool = field(default=False, init=False, repr=False)
    has_told_of_fewer: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.patience < 1:
            raise UserError(f"patience = {self.patience}", "wait for at least one evaluation")
        if self.part not in ("validation", "train"):
            fix = "use validation data: stopping by test data would flatter the run"
            raise UserError(f"a run is not stopped by {self.part} data", fix)

    @property
    def is_over(self) -> bool:
        """Whether it has waited long enough."""
        return self.waited >= self.patience

    def __call__(self, done: RoundDone) -> None:
        """Look at a round, and raise StopRun if the patience is at its end."""
        if self.part not in done.scores:
            self._tell_of_undefined(done)
            return
        counted = done.counted.get(self.part, 0)
        if counted < self.counted:
            self._tell_of_fewer(done, counted)
            return
        if counted > self.counted:
            self.best = -math.inf
        self.counted = counted
        height = done.metric.sign * done.scores[self.part]
        better = height > self.best + self.least
        self.waited = 0 if better else self.waited + 1
        self.best = height if better else self.best
        if self.is_over:
            what = f"{self.part} {done.metric.name}"
            raise StopRun(f"{what} did not get better in {self.patience} evaluations")

    def _tell_of_undefined(self, done: RoundDone) -> None:
        """Say once that there is nothing to judge an evaluated round by."""
        if self.part in done.losses and not self.has_told:
            self.has_told = True
            what = f"{self.part} {done.metric.name} is undefined (NaN) for every client"
            self._tell_of_uncounted(what, done)

    def _tell_of_fewer(self, done: RoundDone, counted: int) -> None:
        """Say once that a round is not compared with those before."""
        if not self.has_told_of_fewer:
            self.has_told_of_fewer = True
            what = f"{counted} of {self.counted} clients that were scored before have a score"
            self._tell_of_uncounted(what, done)

    def _tell_of_uncounted(self, what: str, done: RoundDone) -> None:
        text = f"{what} after round {done.round}: such rounds do not count for early stopping"
        self.tell(Note(text, "warning"))


class Stop:
    """Watches for Ctrl-C while a run is going on; in other threads than the main one it
    cannot, and does not.
    """

    def __init__(self, on_note: OnNote) -> None:
        self.asked = False
        self._on_note = on_note
        self._before: Any = None

    def __enter__(self) -> Stop:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self._on_note(Note("stopping after this round; Ctrl-C once more stops at once", "warning"))
