"""docs/mutants.md: what was caught, package by package, and what was not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mutants.judge import CAUGHT
from mutants.operators import OPERATORS
from mutants.project import Project
from mutants.sample import wilson
from mutants.stored import EQUIVALENT, SURVIVORS, load

HEAD = """# Mutants

`make mutants` plants small bugs in copies of the source, one at a time, and runs the tests that
reach the changed line. A bug is *caught* if a test fails, takes more than ten times as long, or its
process dies. This page is written by that command.

The draw of a seed gives every group of packages and every kind of bug the same number of turns, so
the share is not one of all possible bugs. The interval is Wilson's, at 95 %. **It says something
about the next bug only for a seed that no test was written for**: once survivors of a draw were
closed, its share is too high. Survivors of earlier draws are planted again by every call, and are
counted apart. Tests are asked in the order of time, nearness and focus, up to a limit of seconds
for each bug: a survivor on a line that thousands of tests reach may be caught by one that was not
asked. Code for GPUs is left out.
"""
COLUMNS = ("packages", "caught", "of", "share", "interval", "not reached", "timed out or died")


HISTORY = "history.md"
Rows = list[dict[str, Any]]


def write_page(project: Project, draws: dict[int, Rows]) -> None:
    """Write the page of one or several seeds and print its tables."""
    every = {row["key"]: row for rows in draws.values() for row in rows}
    survivors = [row for row in every.values() if row["verdict"] not in CAUGHT]
    drawn = {row["key"]: row for rows in draws.values() for row in rows if row["drawn"]}
    parts = [HEAD, print_tables(project, draws), _history(project)]
    parts += ["## Kinds of bugs\n", _kinds(list(drawn.values()))]
    parts += ["## Survivors\n", _survivors(project, survivors)]
    parts += ["## Equivalent\n", _equivalent(project)]
    project.page.write_text("\n".join(parts))


def _history(project: Project) -> str:
    """What earlier draws showed, as somebody wrote it down."""
    path = project.notes / HISTORY
    return path.read_text() if path.exists() else ""


def print_tables(project: Project, draws: dict[int, Rows]) -> str:
    """One table for each seed, and what became of the survivors of earlier draws."""
    parts = []
    for seed, rows in draws.items():
        drawn = [row for row in rows if row["drawn"]]
        parts += [f"## Seed {seed}: {len(drawn)} bugs\n", _table(project, drawn)]
    of_any = {row["key"] for rows in draws.values() for row in rows if row["drawn"]}
    again = {row["key"]: row for rows in draws.values() for row in rows}
    earlier = [row["verdict"] in CAUGHT for key, row in again.items() if key not in of_any]
    parts += [f"Survivors of earlier draws: {sum(earlier)} of {len(earlier)} are caught now.\n"]
    text = "\n".join(parts)
    print(text)
    return text


def _table(project: Project, rows: list[dict[str, Any]]) -> str:
    lines = [f"| {' | '.join(COLUMNS)} |", "|---|" + "--:|" * (len(COLUMNS) - 1)]
    for name in project.strata:
        lines.append(_line(name, [row for row in rows if project.stratum(row["file"]) == name]))
    return "\n".join([*lines, _line("**all**", rows), ""])


def _line(name: str, rows: list[dict[str, Any]]) -> str:
    caught = sum(row["verdict"] in CAUGHT for row in rows)
    low, high = wilson(caught, len(rows))
    unreached = sum(row["verdict"] == "unreached" for row in rows)
    ended = sum(row["verdict"] in ("timeout", "died") for row in rows)
    share = f"{caught / len(rows):.0%}" if rows else "-"
    cells = (name, caught, len(rows), share, f"{low:.0%} to {high:.0%}", unreached, ended)
    return f"| {' | '.join(map(str, cells))} |"


def _kinds(rows: list[dict[str, Any]]) -> str:
    lines = ["| kind | caught | of | what it does |", "|---|--:|--:|---|"]
    for name, operator in OPERATORS.items():
        mine = [row for row in rows if row["operator"] == name]
        caught = sum(row["verdict"] in CAUGHT for row in mine)
        lines.append(f"| {name} | {caught} | {len(mine)} | {operator.__doc__} |")
    return "\n".join([*lines, ""])


def _survivors(project: Project, rows: Iterable[dict[str, Any]]) -> str:
    notes = load(project, SURVIVORS)
    lines = []
    for row in sorted(rows, key=lambda row: (row["file"], row["function"], row["line"])):
        asked, reaching = row["tests"]
        tests = f"{asked} of {reaching} tests" if reaching else "no test reaches it"
        note = notes.get(row["key"], {}).get("note") or "to be looked at"
        place = f"`{row['file']}`, `{row['function'] or 'module'}`"
        lines.append(f"- {place} ({tests}): `{_change(row)}`. {note}")
    return "\n".join([*lines, ""]) if lines else "None.\n"


def _equivalent(project: Project) -> str:
    rows = load(project, EQUIVALENT).values()
    lines = [
        f"- `{row['file']}`, `{row['function']}`: `{_change(row)}`. {row['reason']}" for row in rows
    ]
    return "\n".join([*lines, ""]) if lines else "None is listed.\n"


def _change(row: dict[str, Any]) -> str:
    """The line before and after, in one line."""
    line, after = (" ".join(row[name].split()) for name in ("line", "after"))
    return f"{line}` with `{' '.join(row['before'].split())}` as `{after}"
