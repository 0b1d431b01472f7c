"""docs/mutants.md: what was caught, package by package, and what was not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import takewhile
from typing import Any

from mutants.draws import load_draws
from mutants.judge import CAUGHT
from mutants.operators import OPERATORS
from mutants.project import Project
from mutants.sample import wilson
from mutants.stored import CLOSED, EQUIVALENT, SURVIVORS, load

HEAD = """# Mutants

`make mutants` plants small bugs in copies of the source, one at a time, and runs the tests that
reach the changed line. A bug is *caught* if a test fails, takes more than ten times as long, or its
process dies. This page is written by that command, from what is noted in `tests/mutants`.

A seed draws the bugs: every group of packages and every kind of bug has the same number of turns,
so that the share is not one of all possible bugs. **Only a fresh draw, which no test was written
for, says something about the next bug.** Numbers are those of a draw when it was first planted:
tests that its survivors led to do not change them. Intervals are Wilson's, at 95 %. Tests that
import the changed file, are called after it or lie beside it are asked first, up to a limit of
seconds: a survivor may be caught by a test that was not asked. Code for GPUs is left out.
"""
KINDS = """## Kinds of bugs

| kind | what it does |
|---|---|
"""
AROUND = 24  # characters that are shown before and after what is changed
Rows = list[dict[str, Any]]
Pair = tuple[int, int]  # bugs caught, and planted


def write_page(project: Project) -> None:
    """Write the page from the draws, survivors and equivalent bugs that are noted."""
    kinds = [f"| {name} | {operator.__doc__} |\n" for name, operator in OPERATORS.items()]
    parts = [HEAD, _draws(project), "".join([KINDS, *kinds])]
    parts += ["## Survivors\n", _survivors(project), "## Equivalent\n", _equivalent(project)]
    project.page.write_text("\n".join(parts))


def print_tables(project: Project, draws: dict[int, Rows]) -> None:
    """What was caught now, also of seeds that are known already."""
    for seed, rows in draws.items():
        for fresh in (True, False):
            mine = [row for row in rows if row["drawn"] is fresh]
            print(f"\nseed {seed}, {'drawn' if fresh else 'survivors of earlier draws'}:")
            for name in project.strata:
                own = [row for row in mine if project.stratum(row["file"]) == name]
                print(f"  {name}: {_share(_caught(own))}")


def _caught(rows: Rows) -> Pair:
    return sum(row["verdict"] in CAUGHT for row in rows), len(rows)


def _share(pair: Pair) -> str:
    caught, total = pair
    low, high = wilson(caught, total)
    return f"{caught} of {total} ({caught / total:.0%}, {low:.0%} to {high:.0%})" if total else "-"


def _draws(project: Project) -> str:
    """The latest draws together, package by package, and all draws one by one."""
    draws = load_draws(project)
    latest = [draw for draw in draws if draw["latest"]]
    seeds = ", ".join(dict.fromkeys(str(draw["seed"]) for draw in latest))
    lines = [f"## The latest draws: seeds {seeds or '-'}\n", "| packages | caught |", "|---|---|"]
    lines += [f"| {name} | {_share(_sum(latest, [name]))} |" for name in project.strata]
    lines += [f"| **all** | {_share(_sum(latest, project.strata))} |", "\n## All draws\n"]
    lines += [f"| seed | {' | '.join(project.strata)} | all | note |"]
    lines += ["|--:|" + "--:|" * len(project.strata) + "--:|---|"]
    for draw in draws:
        pairs = [_sum([draw], [name]) for name in project.strata]
        every = _sum([draw], draw["caught"])  # of the first ones only this is known
        cells = [str(draw["seed"]), *map(_cell, (*pairs, every)), draw["note"]]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _sum(draws: Rows, packages: Iterable[str]) -> Pair:
    pairs = [draw["caught"].get(name, (0, 0)) for draw in draws for name in packages]
    return sum(caught for caught, _ in pairs), sum(total for _, total in pairs)


def _cell(pair: Pair) -> str:
    return f"{pair[0]}/{pair[1]}" if pair[1] else ""


def _survivors(project: Project) -> str:
    """Those that are open; for the others there is a test now."""
    entries = load(project, SURVIVORS).values()
    left = [entry for entry in entries if not entry["note"].startswith(CLOSED)]
    lines = [f"- {_change(entry)} {entry['note'] or 'To be looked at.'}" for entry in left]
    closed = f"Survivors of all draws that a test catches by now: {len(entries) - len(left)}.\n"
    return "\n".join([closed, *lines, ""])


def _equivalent(project: Project) -> str:
    """Those of one function that have one reason are counted."""
    alike: dict[tuple[str, ...], Rows] = defaultdict(list)
    for row in load(project, EQUIVALENT).values():
        alike[row["file"], row["function"], row["reason"]].append(row)
    lines = [
        f"- {_change(rows[0])} {reason}"
        if len(rows) == 1
        else f"- {file}, {function}, {len(rows)} changes: {reason}"
        for (file, function, reason), rows in alike.items()
    ]
    return "\n".join(["No test can notice these, and they are not planted.\n", *lines, ""])


def _change(row: dict[str, Any]) -> str:
    """Where, and the change in one line."""
    place = f"{row['file']}, {row['function'] or 'module'}"
    before, after = excerpts(*(" ".join(row[name].split()) for name in ("before", "after")))
    return f"{place}: `{before}` as `{after}`."


def excerpts(one: str, other: str) -> tuple[str, str]:
    """Where two texts differ, with some of what stands around it."""
    first = _alike(one, other)
    same = _alike(one[first:][::-1], other[first:][::-1])
    start = first - AROUND if first > AROUND + 3 else 0
    rest = same - AROUND if same > AROUND + 3 else 0
    return _cut(one, start, rest), _cut(other, start, rest)


def _alike(one: str, other: str) -> int:
    """How many characters two texts have in common at their beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other)))


def _cut(text: str, start: int, rest: int) -> str:
    return f"{'...' if start else ''}{text[start : len(text) - rest]}{'...' if rest else ''}"
