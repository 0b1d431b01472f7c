"""What a run tells whoever is watching."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fedblocks.core.errors import count_of
from fedblocks.runs.scored import count_scored, scored_text
from fedblocks.runs.storage.main_metric import MainMetric, score_of
from fedblocks.runs.storage.record import Note, RoundRecord

OnNote = Callable[[Note], None]


class RunWarning(UserWarning):
    """Something about a run that its numbers do not show."""


def warn_of(note: Note) -> None:
    """Hand a warning to Python, which shows it where a program called fedblocks; for callers that
    listen to nothing.
    """
    if note.level == "warning":
        level, frame = 1, sys._getframe()
        while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
            level, frame = level + 1, frame.f_back
        warnings.warn(note.text, RunWarning, stacklevel=level)


def warn_once() -> OnNote:
    """A listener of several runs, whose common warnings are shown once."""
    return tell_once(warn_of)


def tell_once(on_note: OnNote) -> OnNote:
    """A listener that hands on each text once."""
    shown: set[str] = set()

    def tell(note: Note) -> None:
        if note.text not in shown:
            shown.add(note.text)
            on_note(note)

    return tell


def _is_ours(module: str) -> bool:
    return module.split(".")[0] in ("fedblocks", "contextlib")


@dataclass(frozen=True)
class RoundDone:
    """One round, as soon as it is stored."""

    round: int
    rounds: int  # in all
    clients: int  # that took part
    seconds: float
    bytes_down: int
    bytes_up: int
    refused: int  # clients whose update was not used
    # part -> mean over clients of the personal models' main metric; empty: not evaluated
    scores: dict[str, float]
    losses: dict[str, float] = field(default_factory=dict)  # the same of their losses
    metric: MainMetric = MainMetric()  # noqa: RUF009 - frozen
    counted: dict[str, int] = field(default_factory=dict)  # part -> clients in its mean of `scores`
    scored: int = 0  # clients that have scores, if any has
    population: int = 0  # clients that would have them if all were scored; 0: nobody knows

    @staticmethod
    def of(record: RoundRecord, rounds: int, metric: MainMetric, population: int = 0) -> RoundDone:
        """The gist of a record."""
        rows = [m._asdict() for m in record.metrics if m.view == "personal"]
        scores = [(row["part"], score_of(row)) for row in rows]
        return RoundDone(
            round=record.round,
            rounds=rounds,
            clients=record.clients,
            seconds=record.seconds,
            bytes_down=record.sent("down"),
            bytes_up=record.sent("up"),
            refused=len({refusal.client for refusal in record.refusals}),
            scores=_means(scores),
            losses=_means([(row["part"], row["loss"]) for row in rows]),
            metric=metric,
            counted={part: len(own) for part, own in _by_part(scores).items()},
            scored=count_scored(record.metrics),
            population=population,
        )

    def results(self) -> list[str]:
        """Such as `test 82.1%`, or `test mae 0.31`."""
        name = "" if self.metric.name == "accuracy" else f"{self.metric.name} "
        return [f"{part} {name}{self.metric.show(mean)}" for part, mean in self.scores.items()]

    def remarks(self) -> list[str]:
        """Such as `1 of 2 scored`, where the results are not over all clients."""
        return [text for text in [scored_text(self.scored, self.population)] if text]

    def line(self) -> str:
        """One line for a log."""
        parts = [f"round {self.round}/{self.rounds}", count_of(self.clients, "client")]
        parts += [*self.results(), *self.remarks()]
        parts += [f"{(self.bytes_down + self.bytes_up) / 1e6:.2f} MB", f"{self.seconds:.2f} s"]
        return "  ".join(parts + ([f"{self.refused} refused"] if self.refused else []))


OnRound = Callable[[RoundDone], None]


def print_too(on_round: OnRound | None) -> OnRound:
    """A listener that also prints a line a round, where warnings go, too."""

    def both(done: RoundDone) -> None:
        print(done.line(), file=sys.stderr, flush=True)
        if on_round is not None:
            on_round(done)

    return both


def _means(values: Sequence[tuple[str, float | None]]) -> dict[str, float]:
    return {part: sum(own) / len(own) for part, own in _by_part(values).items()}


def _by_part(values: Sequence[tuple[str, float | None]]) -> dict[str, list[float]]:
    by_part: dict[str, list[float]] = {}
    for part, value in values:
        if value is not None and not math.isnan(value):
            by_part.setdefault(part, []).append(value)
    return by_part
