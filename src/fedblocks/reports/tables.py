"""Runs side by side."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from fedblocks.reports.compare import metric_of
from fedblocks.reports.comparison_text import rank_of
from fedblocks.runs.result import RunResult
from fedblocks.runs.same_data import check_same_data
from fedblocks.runs.storage.record import Part

Row = dict[str, Any]


def leaderboard(
    runs: Mapping[str, RunResult], reference: str | None = None, part: Part = "test"
) -> list[Row]:
    """A row for each run, the best mean of the task's main metric in the last round first.

    `best_by_validation` is the mean in the round that does best on validation data;
    `below_reference` the share of clients that do worse than in the reference run; `seconds` leave
    out compilation and warm-up, which `total_seconds` have. Runs of one seed must have had the same
    data.
    """
    check_same_data([*runs.values()])
    against = runs[reference] if reference is not None else None
    rows = [_row(name, result, against, part) for name, result in runs.items()]
    sign = metric_of({name: {0: result} for name, result in runs.items()}).sign
    return sorted(rows, key=partial(rank_of, sign))


def _row(name: str, result: RunResult, reference: RunResult | None, part: Part) -> Row:
    last = result.summary(part, reference=reference)
    best = result.best
    best_summary = best.summaries.get(part) if best is not None else None
    return {
        "name": name,
        "rounds": result.rounds,
        "mean": last["mean"],
        "bottom_decile": last["bottom_decile"],
        "worst": last["worst"],
        "std": last["std"],
        "best_by_validation": best_summary["personal"]["mean"] if best_summary else None,
        "below_reference": last["share_below_reference"],
        "megabytes": (result.bytes_down + result.bytes_up) / 1e6,
        "seconds": result.warm_seconds,
        "total_seconds": result.seconds,
        "lanes": result.lanes,
    }
