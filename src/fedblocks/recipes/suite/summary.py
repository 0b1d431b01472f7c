"""A method over all beds: error reduction, average rank, and where its defaults fail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedblocks.recipes.suite.scores import REFERENCES, BedRuns, Row, clip, like, mean_of, score_of
from fedblocks.reports.student import half_width

POINT = 0.01  # differences within it are of no interest


def summarise_method(name: str, beds: Sequence[BedRuns]) -> Row:
    """The scores on every bed and their means; means need all beds, so that nothing is gained by
    leaving one out.
    """
    on_beds = [score_of(name, runs) for runs in beds]
    scores = [score for score in on_beds if score is not None]
    whole = len(scores) == len(beds)
    ranks = [score["rank"] for score in scores]
    references = [other for other in REFERENCES if like(other, name) != name]
    return {
        "name": name,
        "beds": len(scores),
        "of": len(beds),
        "scores": scores,
        "error_reduction": {
            other: mean_reduction(other, name, beds, on_beds) for other in references
        },
        "rank": mean_of(ranks) if whole and ranks and None not in ranks else None,
        "killed": {runs.bed: runs.killed[name] for runs in beds if name in runs.killed},
        "below_both": below_both(scores),
        "compared": [score["bed"] for score in scores if _is_compared(score)],
    }


def mean_reduction(
    reference: str, name: str, beds: Sequence[BedRuns], scores: Sequence[Row | None]
) -> Row | None:
    """The mean over beds of the share of the reference's error that is gone, with Student's
    interval over the seeds that all beds have: it speaks of these beds, not of others.
    """
    gains = [score["gains"].get(reference) if score else None for score in scores]
    if not gains or None in gains:
        return None
    mean = mean_of([gain["error_reduction"]["mean"] for gain in gains if gain])
    by_seed = [_reductions(reference, name, runs) for runs in beds]
    seeds = sorted(set(by_seed[0]).intersection(*by_seed))
    values = [mean_of([own[seed] for own in by_seed]) for seed in seeds]
    return {
        "mean": mean,
        "half_width": half_width(values) if len(values) > 1 else None,
        "seeds": len(values),
    }


def _reductions(reference: str, name: str, runs: BedRuns) -> dict[int, float]:
    """Of every seed, as a share of the reference's mean error over seeds, clipped like means."""
    pairs = runs.pairs(name, like(reference, name))
    means = {
        seed: (mean_of(own.accuracies.values()), mean_of(other.accuracies.values()))
        for seed, (own, other) in pairs.items()
    }
    error = 1 - mean_of([other for _, other in means.values()])
    return {
        seed: clip((own - other) / error) if error > 0 else 0.0
        for seed, (own, other) in means.items()
    }


def below_both(scores: Sequence[Row]) -> list[str]:
    """The beds on which a method ends below both Local and FedAvg, by more than a point."""
    return [
        score["bed"]
        for score in scores
        if _is_compared(score)
        and all(
            score["gains"][other]["difference"]["mean"] < -POINT for other in ("local", "fedavg")
        )
    ]


def _is_compared(score: Mapping[str, object]) -> bool:
    """Whether a method was run beside both; neither of them is compared with itself."""
    gains = score["gains"]
    assert isinstance(gains, Mapping)
    return all(gains.get(other) is not None for other in ("local", "fedavg"))
