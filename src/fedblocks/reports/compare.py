"""Methods side by side over several seeds: a leaderboard, intervals of differences, and
whether they say anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Unpack, cast

import numpy as np
import numpy.typing as npt

from fedblocks.config.code.loading import hand_over
from fedblocks.core.errors import DataError, UserError
from fedblocks.core.torch_modes import in_own_modes
from fedblocks.data.federation import Federation
from fedblocks.reports.comparison_text import rank_of, shown_cells
from fedblocks.reports.intervals import Interval, bootstrap_interval
from fedblocks.reports.remarks import remarks_on, remarks_on_scores
from fedblocks.reports.student import half_width
from fedblocks.runs.grids.grid import Grid, play_grid, read_grid
from fedblocks.runs.grids.method_grid import Data, Listed, grid_of, recipes_of
from fedblocks.runs.progress import OnNote, OnRound
from fedblocks.runs.ranks.joining import refuse_ranks
from fedblocks.runs.refusals import warnings_of
from fedblocks.runs.result import RunResult
from fedblocks.runs.same_data import check_same_data
from fedblocks.runs.settings import Settings, plain_numbers
from fedblocks.runs.storage.main_metric import MainMetric
from fedblocks.runs.tables import TableRows
from fedblocks.runs.timing import describe_seconds

SEEDS = 6  # fewer seeds give no verdict: an interval over seeds would be far too narrow
DRAWS = 10_000  # bootstrap samples
NUMBERS = 20_000_000  # that all of them may hold in memory at once
Runs = Mapping[str, Mapping[int, RunResult]]  # method -> seed -> run
# told method, seed and number, says whom to tell of rounds
OnRun = Callable[[str, int, int], tuple[OnRound, OnNote]]
Row = dict[str, Any]


@dataclass(frozen=True)
class Comparison:
    """What came out."""

    folder: Path
    # the best mean of the main metric first; `leaderboard_of` says what is in a row
    rows: list[Row]
    verdict: str  # what the intervals allow to say
    runs: Runs

    @property
    def metric(self) -> MainMetric:
        """By which the methods are compared."""
        return metric_of(self.runs)

    def __str__(self) -> str:
        title = "" if self.metric.name == "accuracy" else f"{self.metric.name} of clients"
        table = TableRows(shown_cells(self.rows), title)
        return "\n".join([str(table), *self.remarks, self.verdict, describe_seconds(self.rows)])

    @property
    def remarks(self) -> list[str]:
        """What the means do not show, such as clients without test rows and refused updates."""
        return remarks_on(self.runs)

    @property
    def warnings(self) -> list[str]:
        """What went wrong in runs, and what makes their numbers hard to compare."""
        return [*warnings_of(self.runs), *remarks_on_scores(self.runs)]

    def report(self, path: str | Path | None = None) -> Path:
        """Write the comparison as one HTML file, by default report.html in its folder;
        where it was written.
        """
        from fedblocks.reports.html import write_report

        return write_report(self.folder, Path(path) if path is not None else None)

    def as_json(self) -> dict[str, Any]:
        """Everything as plain values."""
        folders = {
            name: {seed: str(run.folder) for seed, run in by.items()}
            for name, by in self.runs.items()
        }
        return {
            "name": self.folder.name,
            "folder": str(self.folder),
            "metric": self.metric.name,
            "better": self.metric.better,
            "verdict": self.verdict,
            "warnings": self.warnings,
            "methods": self.rows,
            "runs": folders,
        }


@in_own_modes
def compare(
    what: str | Path | Listed,
    data: Data | Sequence[str] | None = None,
    seeds: int | None = None,
    out: str | Path | None = None,
    changes: Sequence[str] = (),
    on_run: OnRun | None = None,
    *,
    methods: Sequence[str] | None = None,
    rounds: int | None = None,
    **settings: Unpack[Settings],
) -> Comparison:
    """Train each method with each seed on the same data and compare; repeat the call to go on after
    a stop.

    `compare([Local(net), FedAvg(net)], data, rounds=20)` compares methods on data, which may be a
    function of the seed; a mapping gives them names of their own. `compare("digits-pfedmb",
    methods=["ditto"])` compares names on a preset or a TOML file, with the baselines; `changes` are
    as after `--set`: `rounds=20` for all, `ditto.strength=0.1` for one.
    """
    refuse_ranks("compare")
    seeds = plain_numbers(seeds)
    if isinstance(what, str | Path):
        hand_over(lambda: [])
        names = methods if methods is not None else data
        _refuse_objects(names, rounds, settings)
        grid: Grid = read_grid(what, cast("Sequence[str] | None", names), seeds, changes)
    else:
        _refuse_names(data, methods, changes)
        listed = what
        federations = cast(Data, data)
        hand_over(lambda: recipes_of(listed, federations, settings.get("sampler")))
        grid = grid_of(listed, federations, rounds, SEEDS if seeds is None else seeds, settings)
    runs = play_grid(grid, Path(out) if out is not None else None, on_run)
    first = next(iter(next(iter(runs.values())).values()))
    return Comparison(first.folder.parents[1], leaderboard_of(runs), verdict_on(runs), runs)


def _refuse_objects(names: object, rounds: int | None, settings: Mapping[str, Any]) -> None:
    """A preset or a file has its own data, rounds and settings."""
    has_data = isinstance(names, Federation) or callable(names)
    if has_data or rounds is not None or settings:
        more = "data" if has_data else next(iter(settings), "rounds")
        fix = 'change the configuration instead: compare(name, changes=["rounds=20"])'
        raise UserError(f"{more} beside a configuration, which says it already", fix)


def _refuse_names(data: object, methods: object, changes: Sequence[str]) -> None:
    if data is None:
        fix = "write compare([Local(net), FedAvg(net)], data, rounds=20)"
        raise UserError("methods need data to be compared on", fix)
    if methods is not None or changes:
        message = "names or changes of a configuration beside methods that are made already"
        fix = (
            "list the methods themselves, with their options: "
            "compare([Local(net, lr=0.1), ...], data)"
        )
        raise UserError(message, fix)


def leaderboard_of(runs: Runs) -> list[Row]:
    """A row for each method: means over seeds of its finished runs' last test evaluation.

    Accuracy stands here for the main metric of the task. `to_local` and `to_fedavg` are the mean
    differences of the clients' accuracies with their intervals, over the seeds that both have;
    `against_local` and `against_fedavg` say better, worse or unclear, and nothing below 6 seeds.
    `seconds` leave out compilation and warm-up, which `total_seconds` have.
    """
    done = {
        name: {s: r for s, r in by.items() if r.status == "finished"} for name, by in runs.items()
    }
    check_same_data([run for by in done.values() for run in by.values()])
    rows = [_row(name, done) for name, by in done.items() if by]
    return sorted(rows, key=partial(rank_of, metric_of(done).sign))


def metric_of(runs: Runs) -> MainMetric:
    """The main metric of some runs, which they must have in common."""
    metrics = [run.metric for by in runs.values() for run in by.values()]
    first = metrics[0] if metrics else MainMetric()
    other = next((metric for metric in metrics if metric.name != first.name), None)
    if other is not None:
        message = f"some runs are judged by {first.name}, others by {other.name}"
        raise DataError(message, "compare runs of one task")
    return first


def verdict_on(runs: Runs) -> str:
    """A sentence about what the number of seeds allows to say."""
    finished = [sum(run.status == "finished" for run in by.values()) for by in runs.values()]
    seeds = min(finished, default=0)
    if seeds < SEEDS:
        return f"not enough seeds for a verdict: {seeds} of at least {SEEDS}"
    return (
        f"{seeds} seeds; better and worse mean that the 95 % interval of the difference "
        f"leaves out 0"
    )


def _row(name: str, runs: Runs) -> Row:
    own = runs[name]
    local = runs.get("local", {})
    summaries = [run.summary(reference=local.get(seed)) for seed, run in own.items()]
    shares = [summary["share_below_reference"] for summary in summaries]
    below = [share for share in shares if share is not None and not math.isnan(share)]
    row: Row = {
        "name": name,
        "seeds": len(own),
        "mean": _mean([summary["mean"] or 0.0 for summary in summaries]),
        "bottom_decile": _mean([summary["bottom_decile"] or 0.0 for summary in summaries]),
        "worst": _mean([summary["worst"] or 0.0 for summary in summaries]),
        "below_local": _mean(below) if below and name != "local" else None,
        "megabytes": _mean([(run.bytes_down + run.bytes_up) / 1e6 for run in own.values()]),
        "seconds": _mean([run.warm_seconds for run in own.values()]),
        "total_seconds": _mean([run.seconds for run in own.values()]),
        "lanes": _mean([run.lanes for run in own.values()]),
    }
    for other in ("local", "fedavg"):
        interval, seeds = _difference(own, runs.get(other, {})) if name != other else (None, 0)
        row[f"to_{other}"] = asdict(interval) if interval is not None else None
        row[f"against_{other}"] = (
            verdict_of(interval, metric_of(runs).sign)
            if interval is not None and seeds >= SEEDS
            else None
        )
    return row


def _difference(
    own: Mapping[int, RunResult], other: Mapping[int, RunResult]
) -> tuple[Interval | None, int]:
    both = [
        (own[seed].scores(), other[seed].scores()) for seed in sorted(own.keys() & other.keys())
    ]
    pairs = [(ours, theirs) for ours, theirs in both if ours.keys() & theirs.keys()]
    if not pairs:
        return None, 0
    differences = differences_of(pairs)
    draws = max(1_000, min(DRAWS, NUMBERS // differences.shape[1]))
    return interval_of(differences, draws), len(pairs)


def differences_of(
    pairs: Sequence[tuple[Mapping[int, float], Mapping[int, float]]],
) -> npt.NDArray[np.float64]:
    """What the clients of two runs differ by, a pair of runs for each seed: [seeds, clients], NaN
    where a seed has fewer clients. A client whose models are endlessly bad in both differs by
    nothing.
    """
    common = [sorted(a.keys() & b.keys()) for a, b in pairs]
    differences = np.full((len(pairs), max(map(len, common))), np.nan)  # [seeds, clients]
    for line, (first, second), clients in zip(differences, pairs, common):
        line[: len(clients)] = [_minus(first[c], second[c]) for c in clients]
    return differences


def _minus(first: float, second: float) -> float:
    return 0.0 if first == second else first - second


def interval_of(
    differences: npt.NDArray[np.float64], draws: int = DRAWS, seed: int = 0
) -> Interval:
    """The bootstrap's interval of paired differences [seeds, clients], no narrower than Student's
    over the seeds.

    A bootstrap of a few seeds that differ is too narrow: with 6 of them it holds the truth in about
    86 % of cases instead of 95 %. An endless difference leaves nothing to say of the mean.
    """
    if np.isinf(differences).any():
        mean = float(np.nanmean(differences, 1).mean())
        return Interval(mean, -math.inf, math.inf, 0.95)
    bootstrap = bootstrap_interval(differences, draws=draws, seed=seed)
    mean = bootstrap.mean
    width = bootstrap.high - bootstrap.low
    wanted = 2 * half_width(np.nanmean(differences, 1).tolist())
    stretch = max(1.0, wanted / width) if width > 0 else 1.0
    low = mean + stretch * (bootstrap.low - mean)
    high = mean + stretch * (bootstrap.high - mean)
    return Interval(mean, low, high, bootstrap.confidence)


def verdict_of(interval: Interval, sign: int = 1) -> str:
    """Whether a difference is told apart from none; `sign`: -1 where less is better."""
    if interval.low <= 0 <= interval.high:
        return "unclear"
    return "better" if sign * interval.mean > 0 else "worse"


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))
