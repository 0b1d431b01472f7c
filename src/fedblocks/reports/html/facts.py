"""What a report says besides charts: leaderboard, pictures, refusals, traffic, how to repeat it."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from fedblocks.core.errors import UserError
from fedblocks.reports.compare import leaderboard_of, verdict_on
from fedblocks.reports.html.figures import Cells
from fedblocks.reports.html.gather import Facts, Story
from fedblocks.reports.html.results import client_name, worst_clients
from fedblocks.reports.html.sharing import Picture, picture_of
from fedblocks.reports.remarks import remarks_on
from fedblocks.runs.grids.grid import PLAN
from fedblocks.runs.storage.code_record import code_options, read_entries
from fedblocks.runs.storage.environment import now
from fedblocks.runs.storage.folder import CONFIG
from fedblocks.runs.timing import describe_seconds

SHOWN = 50  # refused updates, and notes, that are listed one by one


def facts_of(story: Story) -> dict[str, Any]:
    """Everything that is neither a chart nor the same in every report."""
    first = next(iter(story.firsts.values()))
    return {
        "title": story.folder.resolve().name,
        "made": now(),
        "problems": story.problems,
        **_leaderboard(story),
        "worst": worst_clients(story),
        "pictures": _pictures(story),
        "refused": _refusal_counts(story),
        "refusals": _refusals(story),
        "notes": _notes(story),
        "traffic": _traffic(story),
        "config": tomli_w.dumps(first.result.config.resolved()),
        "environment": {
            key: _flat(value) for key, value in first.environment.items() if key != "command"
        },
        "environments": len({json.dumps(_where(run.environment)) for run in _all_runs(story)}),
        "command": "\n".join(dict.fromkeys(_command(run) for run in _all_runs(story))),
        "again": _again(story),
        "partitions": sorted({(run.result.config.seed, run.partition) for run in _all_runs(story)}),
        "data_known": story.federation is not None,
        "has_local": "local" in story.runs,
        "metric": first.result.metric.name,
    }


def _leaderboard(story: Story) -> dict[str, Any]:
    reason = "no run with test data is finished yet"
    try:
        rows, remarks = leaderboard_of(story.results), remarks_on(story.results)
    except UserError as error:  # no test data, for example
        rows, remarks, reason = [], [], error.message
    single = sum(map(len, story.runs.values())) == 1
    verdict = "" if single else verdict_on(story.results)
    return {
        "leaderboard": rows,
        "no_leaderboard": f"There is no leaderboard: {reason}.",
        "remarks": remarks,
        "verdict": verdict,
        "about_seconds": describe_seconds(rows),
    }


def _pictures(story: Story) -> list[Picture]:
    by_name = {name: story.methods(name) for name in story.runs}
    return [picture_of(name, methods) for name, methods in by_name.items() if methods]


def _refusal_counts(story: Story) -> list[Cells]:
    """How often, by method and reason."""
    counts = Counter(
        (name, row["reason"])
        for name, by in story.runs.items()
        for run in by.values()
        for row in run.refusals
    )
    return [[name, reason, count] for (name, reason), count in sorted(counts.items())]


def _refusals(story: Story) -> list[Cells]:
    rows = [
        [
            *(name, seed, row["round"], client_name(story, row["client"], run)),
            *(row["reason"], row["detail"]),
        ]
        for name, by in story.runs.items()
        for seed, run in by.items()
        for row in run.refusals
    ]
    return rows[:SHOWN]


def _notes(story: Story) -> list[Cells]:
    counts = Counter(
        (name, n["level"], n["text"]) for name, t in _named_runs(story) for n in t.result.notes
    )
    return [[*key, count] for key, count in list(counts.items())[:SHOWN]]


def _traffic(story: Story) -> list[Cells]:
    return [
        [name, row["block"], row["down"] / 1e6, row["up"] / 1e6]
        for name, run in story.firsts.items()
        for row in run.traffic
    ]


def _again(story: Story) -> str:
    """The commands that repeat it; none where nobody knows the file that made its objects."""
    first = next(iter(story.firsts.values())).result
    files = code_options(read_entries(first.folder))
    if first.config.is_of_objects and not files:
        return ""
    if story.is_comparison and not first.config.is_of_objects:
        plan = str(story.folder / PLAN)
        return shlex.join(["fedblocks", "compare", plan, *files, "--out", "NEW_FOLDER"])
    # a comparison of objects has no names by which it could be made again as a whole
    return "\n".join(_run_again(run.result.folder) for run in _all_runs(story))


def _run_again(folder: Path) -> str:
    files = code_options(read_entries(folder))
    return shlex.join(
        ["fedblocks", "run", str(folder / CONFIG), *files, "--out", f"NEW_{folder.name}"]
    )


def _command(run: Facts) -> str:
    words = run.environment.get("command", [])
    is_program = bool(words) and words[0].endswith(".py")
    return shlex.join(["python", *words] if is_program else words)


def _all_runs(story: Story) -> list[Facts]:
    return [run for _, run in _named_runs(story)]


def _named_runs(story: Story) -> list[tuple[str, Facts]]:
    return [(name, run) for name, by in story.runs.items() for run in by.values()]


def _where(environment: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in environment.items() if key != "command"}


def _flat(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {v}" for k, v in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(str, value))
    return "-" if value is None else str(value)
