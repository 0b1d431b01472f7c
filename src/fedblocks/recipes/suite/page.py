"""The page docs/suite.md, made of the files in results/; and what method pages take from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedblocks.config.catalogue import describe_options
from fedblocks.methods import METHODS
from fedblocks.recipes.suite.beds import BATCH, BEDS, VERSION, SuiteBed
from fedblocks.recipes.suite.coverage import coverage, machine_letters, machine_table
from fedblocks.recipes.suite.entrants import TUNED
from fedblocks.recipes.suite.manifest import federations, manifest_hash
from fedblocks.recipes.suite.page_text import (
    BEDS_HEAD,
    COLUMNS,
    HEAD,
    MACHINES_HEAD,
    SEEDS_ARE_FEW,
)
from fedblocks.recipes.suite.scores import REFERENCES, BedRuns, Row, read_runs
from fedblocks.recipes.suite.summary import summarise_method
from fedblocks.recipes.suite.trial import read_files
from fedblocks.reports.compare import SEEDS

TITLES = {"local": "Local", "fedavg": "FedAvg", "fedavg_ft": "FedAvg+"}
# Rows with defaults that were run before these changed, and what they were run with; empty once the
# suite was run again
OLDER: Mapping[str, str] = {}
ROW_KINDS = {"": "with defaults", TUNED: "tuned on validation data"}


def suite_page(folder: Path) -> str:
    """The page as Markdown."""
    default = method_rows(runs_by_bed(folder))
    about = {"version": VERSION, "manifest": manifest_hash(), "batch": BATCH}
    parts = [HEAD.format(**about, coverage=coverage(read_files(folder), default)), bed_table()]
    parts += [machines(folder)]
    for variant, held_out in (("", False), (", held-out variants", True)):
        beds = runs_by_bed(folder, held_out)
        for suffix, words in ROW_KINDS.items():
            rows = method_rows(beds, suffix)
            if rows:
                parts += [f"## Results {words}{variant}", "", seeds_line(rows), ""]
                parts += [overview(rows, beds), "", verdicts(rows) if not suffix else "", ""]
                letters = machine_letters(runs_by_bed(folder))
                parts += [bed_section(rows, runs.bed, letters) for runs in beds]
    return "\n".join([*parts, "## Defaults", "", defaults_table()]) + "\n"


def machines(folder: Path) -> str:
    """What kinds of machines the rows came from."""
    return f"{MACHINES_HEAD}\n{machine_table(runs_by_bed(folder))}\n"


def runs_by_bed(folder: Path, held_out: bool = False) -> list[BedRuns]:
    """The beds that all references were run on."""
    files = read_files(folder, held_out)
    every = [read_runs(bed, files) for bed in BEDS]
    return [runs for runs in every if all(runs.runs.get(name) for name in REFERENCES)]


def method_rows(beds: Sequence[BedRuns], suffix: str = "") -> list[Row]:
    """A summary of every method that was run, ours in their order and then the others."""
    known = {name for runs in beds for name in (*runs.runs, *runs.errors)}
    names = {name.removesuffix(TUNED) for name in known if name.endswith(TUNED) == bool(suffix)}
    order = [name for name in METHODS if name in names] + sorted(names - METHODS.keys())
    rows = [summarise_method(name + suffix, beds) for name in order]
    return [row for row in rows if row["scores"]]


def default_runs(folder: Path) -> dict[str, Any]:
    """What `fedblocks methods` and the pages of methods say: where a default run ends below both
    Local and FedAvg.
    """
    beds = runs_by_bed(folder)
    rows = method_rows(beds)
    own = {
        row["name"]: {
            "compared": row["compared"],
            "below_both": row["below_both"],
            "seeds": min(score["seeds"] for score in row["scores"]),
        }
        for row in rows
        if row["name"] not in OLDER
    }
    return {"version": VERSION, "methods": own}


def bed_table() -> str:
    """What the beds are."""
    return "\n".join([BEDS_HEAD, *(_bed_line(bed) for bed in BEDS.values()), ""])


def _bed_line(bed: SuiteBed) -> str:
    instead = f" (stands for {bed.stands_for})" if bed.stands_for else ""
    sizes = f"{bed.clients - bed.new} + {bed.new}"
    budget = f"{bed.rounds} x {bed.epochs}" + (f", {bed.cohort:.0%} a round" * (bed.cohort < 1))
    first = federations().get(bed.name, {}).get("0", "-")
    return (
        f"| {bed.name} | {bed.about} | `{bed.data_set}`{instead} | {sizes} | {bed.net['name']} | "
        f"{budget} | {bed.lr:g} | {bed.seconds:g} | `{first}` |"
    )


def seeds_line(rows: Sequence[Row]) -> str:
    """How many seeds there are, and what that allows to say."""
    seeds = [score["seeds"] for row in rows for score in row["scores"]]
    text = f"{min(seeds)}" if min(seeds) == max(seeds) else f"{min(seeds)} to {max(seeds)}"
    few = f" {SEEDS_ARE_FEW.format(seeds=SEEDS)}" if min(seeds) < SEEDS else ""
    return f"{text} paired seeds.{few}"


def overview(rows: Sequence[Row], beds: Sequence[BedRuns]) -> str:
    """Accuracy of every method on every bed, and what they come to."""
    names = [runs.bed for runs in beds]
    head = f"| method | {' | '.join(names)} | error less than FedAvg+'s, % | average rank |"
    lines = [head, "|---" * (len(names) + 3) + "|"]
    for row in rows:
        by_bed = {score["bed"]: score for score in row["scores"]}
        cells = [_place(row, by_bed.get(name), name) for name in names]
        mean = row["error_reduction"].get("fedavg_ft")
        rank = "-" if row["rank"] is None else f"{row['rank']:.1f}"
        lines.append(f"| {_link(row['name'])} | {' | '.join(cells)} | {_mean(mean)} | {rank} |")
    absent = [name for name in BEDS if name not in names]
    rest = f" Not run yet: {', '.join(absent)}." if absent else ""
    return "\n".join([*lines, "", f"**(v)**: more than a point below both Local and FedAvg.{rest}"])


def verdicts(rows: Sequence[Row]) -> str:
    """Which defaults fail, in words."""
    lines = [
        f"- {_link(row['name'])} ends below both Local and FedAvg on {len(row['below_both'])} of "
        f"{len(row['compared'])} beds: {', '.join(row['below_both'])}."
        for row in rows
        if row["below_both"]
    ]
    none = ["No method ends more than a point below both Local and FedAvg."]
    older = [
        f"- The row of {_link(name)} is older than its present defaults: it has {options}."
        for name, options in OLDER.items()
        if any(row["name"] == name for row in rows)
    ]
    return "\n".join([*(lines or none), *older])


def bed_section(rows: Sequence[Row], bed: str, letters: Mapping[str, str]) -> str:
    """All scores on one bed."""
    scores = [score for row in rows for score in row["scores"] if score["bed"] == bed]
    lines = [f"### {bed}", "", COLUMNS, "|---" * COLUMNS.count(" | ") + "|---|"]
    ranked = sorted(scores, key=lambda score: -score["mean"])
    return "\n".join([*lines, *(_score_line(score, letters) for score in ranked), ""])


def _score_line(score: Row, letters: Mapping[str, str]) -> str:
    gains = [_gain(score["gains"].get(other), "difference") for other in REFERENCES]
    reduction = _gain(score["gains"].get("fedavg_ft"), "error_reduction")
    harmed = [score["harmed"].get(other) for other in ("local", "fedavg")]
    shares = ["-" if share is None else f"{100 * share:.0f}" for share in harmed]
    rank = "-" if score["rank"] is None else f"{score['rank']:.1f}"
    new = "-" if score["new"] is None else f"{100 * score['new']:.1f}"
    failed = f" (failed: {score['error']}; counts as Local)" if score["error"] else ""
    cells = [f"{_link(score['name'])}{failed}", _accuracy(score, False), *gains, reduction, rank]
    cells += [*shares, f"{100 * score['bottom_decile']:.1f}", new, f"{score['bytes'] / 1e6:.2f}"]
    kinds = "+".join(letters.get(kind, "?") for kind in score["machines"])
    return f"| {' | '.join(cells)} | {score['seconds']:.0f} | {kinds} |"


def _place(row: Row, score: Mapping[str, Any] | None, bed: str) -> str:
    """What a method reached on a bed; or that its worker was killed, which says nothing of it."""
    if score is None and bed in row["killed"]:
        return "killed, to be run again"
    return _accuracy(score, bed in row["below_both"])


def _accuracy(score: Mapping[str, Any] | None, is_below: bool) -> str:
    if score is None:
        return "-"
    width = "" if score["half_width"] is None else f" ± {100 * score['half_width']:.1f}"
    return f"{100 * score['mean']:.1f}{width}" + (" **(v)**" if is_below else "")


def _gain(gain: Mapping[str, Any] | None, key: str) -> str:
    if gain is None:
        return "-"
    mean, low, high = (100 * gain[key][name] for name in ("mean", "low", "high"))
    return f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]"


def _mean(mean: Mapping[str, Any] | None) -> str:
    if mean is None:
        return "-"
    width = "" if mean["half_width"] is None else f" ± {100 * mean['half_width']:.1f}"
    return f"{100 * mean['mean']:+.1f}{width}"


def _link(name: str) -> str:
    method = name.removesuffix(TUNED)
    return f"[{method}](methods/{method}.md)" if method in METHODS else method


def defaults_table() -> str:
    """The defaults of every method, less what all have in common."""
    common = {option["name"] for option in describe_options("method", "local")}
    lines = ["| method | defaults |", "|---|---|"]
    for name in METHODS:
        own = [o for o in describe_options("method", name) if o["name"] not in common]
        text = ", ".join(f"{option['name']} {_plain(option['default'])}" for option in own)
        lines.append(f"| {_link(name)} | {text or '-'} |")
    return "\n".join(lines)


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return str(value.get("name", value))
    return "open" if value is None else str(value)
