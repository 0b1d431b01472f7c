"""Scores of a method on one bed: against fixed references on the same clients and seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from fedblocks.core.errors import DataError
from fedblocks.recipes.suite.entrants import TUNED
from fedblocks.recipes.suite.numbers import Counts, SeedNumbers
from fedblocks.reports.compare import SEEDS, differences_of, interval_of, verdict_of
from fedblocks.reports.intervals import Interval
from fedblocks.reports.student import half_width

REFERENCES = ("local", "fedavg", "fedavg_ft")
PANEL = (*REFERENCES, "ditto", "fedrep", "apfl", "ifca", "fedem")  # frozen; ranks are against them
Row = dict[str, Any]
BySeed = Mapping[int, SeedNumbers]


@dataclass(frozen=True, eq=False)
class BedRuns:
    """The runs of all methods on one bed."""

    bed: str
    runs: Mapping[str, BySeed]  # a method, or a method and TUNED -> seed -> numbers
    errors: Mapping[str, str]  # of those that failed
    # of those whose worker was killed from outside: that is nothing that a method did
    killed: Mapping[str, str] = field(default_factory=dict)

    def of(self, name: str) -> BySeed:
        """The runs of a method; one that failed, be it with a single seed, did as Local does, which
        everybody can do alone: the seeds that went well are no fair sample.
        """
        if name in self.errors:
            return self.runs.get(like("local", name), {})
        return self.runs.get(name, {})

    def pairs(self, name: str, other: str) -> dict[int, tuple[SeedNumbers, SeedNumbers]]:
        """The runs of two methods with the same seed, which must have had the same data."""
        own, others = self.of(name), self.of(other)
        both = {seed: (own[seed], others[seed]) for seed in sorted(own.keys() & others.keys())}
        for seed, (first, second) in both.items():
            if first.partition != second.partition:
                message = f"{name} and {other} had other data on {self.bed}, seed {seed}"
                raise DataError(message, "run both with the same data files, in another --out")
        return both


def like(reference: str, name: str) -> str:
    """The reference for a row: a tuned one for a tuned one."""
    return reference + TUNED if name.endswith(TUNED) else reference


def read_runs(bed: str, files: Iterable[Mapping[str, Any]]) -> BedRuns:
    """The runs on one bed in some results files."""
    cells = {
        key.partition("/")[2]: entry
        for one in files
        for key, entry in one["cells"].items()
        if key.partition("/")[0] == bed
    }
    runs = {
        name: {int(seed): SeedNumbers.of(own) for seed, own in entry["seeds"].items()}
        for name, entry in cells.items()
    }
    errors = {name: entry["error"] for name, entry in cells.items() if "error" in entry}
    killed = {name: entry["killed"] for name, entry in cells.items() if "killed" in entry}
    return BedRuns(bed, runs, errors, killed)


def score_of(name: str, runs: BedRuns) -> Row | None:
    """All scores of a method on one bed, None if it was not run there; accuracies are shares.

    `mean`: over clients and then seeds, every client counts the same. `gains`: for each reference
    the difference, its interval, and the share of the reference's error that is gone.
    `harmed`: share of clients that have more than one answer fewer than with the reference.
    """
    own = runs.of(name)
    if not own:
        return None
    means = [mean_of(run.accuracies.values()) for run in own.values()]
    new = [mean_of(run.new_accuracies.values()) for run in own.values() if run.new]
    references = [other for other in REFERENCES if like(other, name) != name]
    return {
        "bed": runs.bed,
        "name": name,
        "seeds": len(own),
        "error": runs.errors.get(name, ""),
        "mean": mean_of(means),
        "half_width": half_width(means) if len(means) > 1 else None,
        "bottom_decile": mean_of([bottom_decile(run) for run in own.values()]),
        "new": mean_of(new) if new else None,
        "bytes": mean_of([run.bytes / len(run.test) for run in own.values()]),
        "seconds": mean_of([run.seconds for run in own.values()]),
        "warnings": {str(seed): run.warning for seed, run in own.items() if run.warning},
        "machines": sorted({run.machine for run in own.values()}),
        "gains": {other: gain_over(other, name, runs) for other in references},
        "harmed": {other: share_harmed(other, name, runs) for other in references},
        **rank_of(name, runs),
    }


def gain_over(reference: str, name: str, runs: BedRuns) -> Row | None:
    """The difference of the clients' accuracies with its interval; and the same as a share of the
    reference's error, clipped to -1..1. A verdict needs six seeds.
    """
    pairs = list(runs.pairs(name, like(reference, name)).values())
    if not pairs:
        return None
    interval = interval_of(differences_of([(a.accuracies, b.accuracies) for a, b in pairs]))
    error = 1 - mean_of([mean_of(other.accuracies.values()) for _, other in pairs])
    return {
        "difference": asdict(interval),
        "error_reduction": asdict(relative(interval, error)),
        "seeds": len(pairs),
        "verdict": verdict_of(interval) if len(pairs) >= SEEDS else None,
    }


def relative(difference: Interval, error: float) -> Interval:
    """A difference as a share of the reference's error, which is taken as it was measured."""
    if error <= 0:  # nothing is left to gain
        return Interval(
            min(difference.mean, 0.0), min(difference.low, 0.0), 0.0, difference.confidence
        )
    mean, low, high = (
        clip(value / error) for value in (difference.mean, difference.low, difference.high)
    )
    return Interval(mean, low, high, difference.confidence)


def clip(share: float) -> float:
    """A share of an error: who errs more than twice as often loses no more."""
    return max(-1.0, min(1.0, share))


def share_harmed(reference: str, name: str, runs: BedRuns) -> float | None:
    """The share of clients with more than one right answer fewer than in the reference's run."""
    pairs = runs.pairs(name, like(reference, name)).values()
    lost = [lost_answers(own.test, other.test) for own, other in pairs]
    every = [answers for by_seed in lost for answers in by_seed]
    return sum(answers > 1 for answers in every) / len(every) if every else None


def lost_answers(own: Counts, other: Counts) -> list[float]:
    """By how many right answers each client has fewer."""
    return [other[client][0] - own[client][0] for client in sorted(own.keys() & other.keys())]


def rank_of(name: str, runs: BedRuns) -> Row:
    """The place among the frozen panel, 1 is the best, equal ones share their places; None unless
    all of the panel were run. `rank_half_width` is Student's over seeds.
    """
    nothing: Row = {"rank": None, "rank_half_width": None}
    others = [like(other, name) for other in PANEL if like(other, name) != name]
    seeds = set(runs.of(name)).intersection(*(runs.of(other) for other in others))
    if not seeds:
        return nothing
    means = {
        one: [mean_of(runs.of(one)[seed].accuracies.values()) for seed in sorted(seeds)]
        for one in (name, *others)
    }
    places = [
        place([means[other][i] for other in others], means[name][i]) for i in range(len(seeds))
    ]
    rank = place([mean_of(means[other]) for other in others], mean_of(means[name]))
    width = half_width(places) if len(places) > 1 else None
    return {"rank": rank, "rank_half_width": width}


def place(others: Sequence[float], own: float) -> float:
    """1 + those above + half of those that are equal."""
    return 1 + sum(o > own for o in others) + 0.5 * sum(o == own for o in others)


def bottom_decile(run: SeedNumbers) -> float:
    """The accuracy that a tenth of the clients stay below."""
    ranked = sorted(run.accuracies.values())
    return ranked[len(ranked) // 10]


def mean_of(values: Iterable[float]) -> float:
    """The mean of some numbers."""
    numbers = list(values)
    return math.fsum(numbers) / len(numbers)
