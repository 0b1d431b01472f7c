"""Tables and figures that can be reproduced, and their results, on the screen."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedblocks.cli.output import say, show_json, show_table

if TYPE_CHECKING:
    from fedblocks.recipes.recipe import Recipe

HEADINGS = {
    "name": "cell",
    "published": "published",
    "ours": "ours",
    "difference": "difference",
    "verdict": "verdict",
}
SEEDS = 3  # of each cell, unless --seeds or --quick say otherwise


def default_seeds(recipe: Recipe, quick: bool) -> int:
    """How many seeds each cell gets if nobody says how many."""
    return recipe.quick_seeds if quick else SEEDS


def show_results(
    recipe: Recipe, rows: list[dict[str, Any]], path: Path, done: bool, quick: bool
) -> None:
    """Published numbers beside ours, and what to know about them."""
    of = f", a stand-in for {recipe.stand_in_for}" if recipe.stand_in_for else ""
    say(f"{recipe.name}{of}: {recipe.title} ({recipe.unit}){', scaled down' if quick else ''}")
    curves = {"curve": "curve of the first seed"} if recipe.shape == "figure" else {}
    show_table({**HEADINGS, **curves}, [_cells(row) for row in rows])
    for note in recipe.notes:
        say(f"- {note}")
    if not done:
        say("stopped at the budget; go on with the same command")
    if path.exists():
        say(f"Everything is in {path}; ours with 95 % intervals over seeds (Student).")


def _cells(row: dict[str, Any]) -> dict[str, Any]:
    published = "-" if row["published"] is None else f"{row['published']:.2f}"
    gap = "-" if row["difference"] is None else f"{row['difference']:+.2f}"
    verdict = row["verdict"] if row["state"] == "done" else row["state"]
    return {
        **row,
        "ours": _ours(row),
        "published": published,
        "difference": gap,
        "verdict": verdict,
        "curve": _curve(row["curve"]),
    }


def _curve(curve: dict[str, list[Any]]) -> str:
    """Accuracies, or the largest branch weights, by round; and what was sent in the end."""
    from fedblocks.cli.progress import sparkline

    heights = curve.get("accuracy") or curve.get("mean_largest_alpha") or []
    if not curve.get("parameters"):
        return sparkline(heights)
    return f"{sparkline(heights)}  {curve['parameters'][-1] / 1e6:.1f} M parameters sent"


def _ours(row: dict[str, Any]) -> str:
    if row["ours"] is None:
        return "-"
    if row["half_width"] is None:
        return f"{row['ours']:.2f} ({row['seeds']} seed)"
    return f"{row['ours']:.2f} ± {row['half_width']:.2f}"


def show_list(quick: bool, seeds: int | None, as_json: bool) -> None:
    """All tables and figures with their data sets and what they cost."""
    from fedblocks.recipes import RECIPES
    from fedblocks.recipes.listing import describe

    recipes = [make() for make in RECIPES.values()]
    rows = [describe(recipe, quick, seeds or default_seeds(recipe, quick)) for recipe in recipes]
    if as_json:
        show_json(rows)
        return
    for row in rows:
        data = [name if there else f"{name} (missing)" for name, there in row["data"].items()]
        row["data"] = ", ".join(data)
        row["number"] = len(row["cells"])
        row["hours"] = _hours(row["seconds"])
        row["stand_in_for"] = row["stand_in_for"] or ""
    headings = {
        "name": "name",
        "title": "what",
        "number": "cells",
        "data": "data sets",
        "stand_in_for": "stand-in for",
        "hours": "estimated on one worker",
    }
    show_table(headings, rows)
    say(
        "Costs are estimates: examples x rounds x runs x a quick measurement of each net on this "
        "device."
    )
    say("With --json: every cell with its data sets and cost.")


def _hours(seconds: float | None) -> str:
    if seconds is None:
        return "unknown"
    return f"{seconds / 3600:.1f} h" if seconds > 5400 else f"{seconds / 60:.1f} min"
