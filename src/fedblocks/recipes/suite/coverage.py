"""How much of the suite was run, on what machines: what the page says before any score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import Any

from fedblocks.methods import METHODS
from fedblocks.recipes.suite.beds import BEDS
from fedblocks.recipes.suite.entrants import TUNED
from fedblocks.recipes.suite.scores import BedRuns, Row
from fedblocks.reports.compare import SEEDS

ALLOWED = 2  # beds on which defaults may end below both Local and FedAvg
Files = Sequence[Mapping[str, Any]]


def coverage(files: Files, rows: Sequence[Row]) -> str:
    """On how many beds each method was run, and whose defaults fail on more beds than two."""
    seeds = seeds_by_row(files)
    default = sum(not key.endswith(TUNED) for key in seeds)
    every = len(BEDS) * len(METHODS)
    compared = sorted({bed for row in rows for bed in row["compared"]}, key=list(BEDS).index)
    return "\n".join(
        [
            f"Rows with defaults: {default} of {every}; tuned: {len(seeds) - default} of {every}. "
            f"The page is whole with all of them and {SEEDS} seeds in each.",
            "",
            worst_defaults(rows, compared),
            "",
            f"| method | with defaults, of {len(BEDS)} beds | tuned, of {len(BEDS)} | "
            "below both Local and FedAvg with defaults |",
            "|---|---|---|---|",
            *(_line(name, seeds, rows) for name in METHODS),
        ]
    )


def seeds_by_row(files: Files) -> dict[str, int]:
    """How many seeds each row has, by its key such as "hapt/fedper, tuned"."""
    cells = {key: entry for one in files for key, entry in one["cells"].items()}
    return {key: len(entry["seeds"]) for key, entry in cells.items() if entry["seeds"]}


def worst_defaults(rows: Sequence[Row], compared: Sequence[str]) -> str:
    """Whose defaults end below both references on more than two beds, in words."""
    worst = [row for row in rows if len(row["below_both"]) > ALLOWED]
    where = f"the {len(compared)} of {len(BEDS)} beds that methods were compared on"
    if not worst:
        return f"No method ends below both Local and FedAvg on more than {ALLOWED} of {where}."
    named = ", ".join(f"{row['name']} ({', '.join(row['below_both'])})" for row in worst)
    return f"**Below both Local and FedAvg on more than {ALLOWED}** of {where}: {named}."


def _line(name: str, seeds: Mapping[str, int], rows: Sequence[Row]) -> str:
    own = next((row for row in rows if row["name"] == name), None)
    below = ", ".join(own["below_both"]) if own else ""
    counts = [_count([seeds.get(f"{bed}/{name}{kind}", 0) for bed in BEDS]) for kind in ("", TUNED)]
    failed = "-" if own is None or not own["compared"] else below or "nowhere"
    return f"| [{name}](methods/{name}.md) | {' | '.join(counts)} | {failed} |"


def _count(seeds: Sequence[int]) -> str:
    """Beds with a row; and how many of those lack seeds."""
    run = [count for count in seeds if count]
    short = sum(count < SEEDS for count in run)
    return f"{len(run)}" + (f" ({short} with fewer than {SEEDS} seeds)" if short else "")


def machine_letters(beds: Sequence[BedRuns]) -> dict[str, str]:
    """A letter for each kind of machine that rows came from."""
    kinds = {run.machine for runs in beds for own in runs.runs.values() for run in own.values()}
    return dict(zip(sorted(kinds), ascii_uppercase, strict=False))


def machine_table(beds: Sequence[BedRuns]) -> str:
    """The kinds of machines, and how many rows have seeds of one kind or of several."""
    letters = machine_letters(beds)
    rows = [{run.machine for run in own.values()} for runs in beds for own in runs.runs.values()]
    lines = ["| machine | processor, torch | rows of it alone | rows of it and others |"]
    lines += ["|---|---|---|---|"]
    for kind, letter in letters.items():
        alone = sum(own == {kind} for own in rows)
        mixed = sum(kind in own and len(own) > 1 for own in rows)
        lines.append(f"| {letter} | {kind} | {alone} | {mixed} |")
    return "\n".join(lines)
