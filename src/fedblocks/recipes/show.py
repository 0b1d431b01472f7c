"""A table as it stands: published number, ours with its interval, the difference, and
whether that is noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedblocks.recipes.presence import missing
from fedblocks.recipes.recipe import Cell, Recipe
from fedblocks.recipes.running.results import Results
from fedblocks.reports.student import half_width

Row = dict[str, Any]


def rows_of(
    results: Results, cells: Sequence[Cell], seeds: int, stand_ins: Sequence[Recipe] = ()
) -> list[Row]:
    """One row for each cell; what was not run says why, and which recipes stand in for it."""
    return [_row(results, cell, seeds, stand_ins) for cell in cells]


def row_of(key: str, entry: Mapping[str, Any], quick: bool) -> Row:
    """The numbers of one cell as they are stored."""
    seeds = sorted(entry["seeds"], key=int)
    values = [entry["seeds"][seed]["value"] for seed in seeds]
    mean = sum(values) / len(values) if values else None
    half = half_width(values) if len(values) > 1 else None
    gap = mean - entry["published"] if mean is not None and entry["published"] is not None else None
    return {
        "name": key,
        "published": entry["published"],
        "ours": mean,
        "half_width": half,
        "seeds": len(values),
        "difference": gap,
        "verdict": verdict(gap, half, quick),
        "chosen": entry.get("chosen") or {},
    }


def verdict(gap: float | None, half: float | None, quick: bool) -> str:
    """Whether the published number lies in the 95 % interval of ours."""
    if gap is None:
        return ""
    if quick:
        return "scaled down, not comparable"
    if half is None:
        return "1 seed: noise unknown"
    return "within noise" if abs(gap) <= half else "above" if gap > 0 else "below"


def _row(results: Results, cell: Cell, seeds: int, stand_ins: Sequence[Recipe]) -> Row:
    nothing: dict[str, Any] = {"published": cell.published, "seeds": {}, "tuning": []}
    entry = results.cells.get(cell.key, nothing)
    row = row_of(cell.key, {**entry, "published": cell.published}, results.quick)
    row["seconds"] = sum(one["seconds"] for one in (*entry["tuning"], *entry["seeds"].values()))
    state = _state(entry, cell, results.quick, seeds, stand_ins)
    return {**row, "curve": _curve(entry), "state": state}


def _curve(entry: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The lists of the first seed, for a figure: accuracies by round, parameters sent, ..."""
    seeds = entry["seeds"]  # in the order in which they ended
    first: Mapping[str, Any] = seeds[min(seeds, key=int)] if seeds else {}
    return {key: value for key, value in first.items() if isinstance(value, list)}


def _state(
    entry: Mapping[str, Any], cell: Cell, quick: bool, seeds: int, stand_ins: Sequence[Recipe]
) -> str:
    absent = missing(cell)
    if absent:
        fitting = [recipe.name for recipe in stand_ins if set(recipe.instead_of) & set(absent)]
        others = f"; stand-in: {', '.join(fitting)}" if fitting else ""
        return f"needs the files of {', '.join(absent)}{others}"
    if "error" in entry:
        return f"failed: {entry['error']}"
    if "killed" in entry:
        return f"{entry['killed']}; the same command takes it up again"
    if len(entry["seeds"]) >= seeds:
        return "done"
    if len(cell.points(quick)) > 1 and not entry["seeds"]:
        return f"choosing values: {len(entry['tuning'])} tries so far"
    return f"{len(entry['seeds'])} of {seeds} seeds"
