"""`fedblocks methods`, `plan` and `check`: what there is, what it does, whether it
keeps the contract.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Annotated

import typer

from fedblocks.cli.code import CodeFiles, read_code
from fedblocks.cli.completion import some_method
from fedblocks.cli.output import AsJson, Changes, say, show_json, show_table, stoppable
from fedblocks.core.errors import count_of

CHECK_FAILED = 6  # exit code

Name = Annotated[
    str,
    typer.Argument(
        metavar="METHOD", help="Method; `fedblocks methods` lists all.", autocompletion=some_method
    ),
]


def methods(code: CodeFiles = None, as_json: AsJson = False) -> None:
    """List all methods; --json adds their papers and options."""

    def action() -> None:
        from fedblocks.config.catalogue import methods as all_methods
        from fedblocks.config.registry import ADAPTER_METHODS
        from fedblocks.recipes.suite.default_runs import read_default_runs, sentence_about

        read_code(code)
        suite = read_default_runs()
        entries = [
            {**entry, "suite": suite["methods"].get(entry["name"])} for entry in all_methods()
        ]
        if as_json:
            show_json(entries)
            return
        rows = [{**entry, "about": entry.get("error") or entry["about"]} for entry in entries]
        headings = {
            "name": "method",
            "personal_by": "personal by",
            "stateful": "clients keep state",
            "year": "year",
            "about": "what it is",
        }
        show_table(headings, rows)
        for entry in entries:
            if entry["suite"] and entry["suite"]["below_both"]:
                say(f"{entry['name']}: {sentence_about(entry['name'], suite)}")
        others = [name for name in ADAPTER_METHODS if name not in {e["name"] for e in entries}]
        if others:
            say(f"For a net with adapters, by --code (docs/adapters.md): {', '.join(others)}.")

    stoppable(action)


def presets(as_json: AsJson = False) -> None:
    """List the configurations that come with the library."""
    from fedblocks.cli.names import preset_names

    names = preset_names()
    if as_json:
        show_json([{"name": name} for name in names])
    else:
        say("\n".join(names))


def plan(
    method: Name, changes: Changes = None, code: CodeFiles = None, as_json: AsJson = False
) -> None:
    """Show what a method does with each block.

    The table says where a block lives, what clients see and write, and when it trains.
    """

    def action() -> None:
        from fedblocks.core.plan import plan as plan_of
        from fedblocks.runs.digits import method_on_digits

        read_code(code)
        table = plan_of(method_on_digits(method, changes or []))
        steps = {"train": table.phases, "adapt": table.adaptation, "join": table.joining}
        if as_json:
            blocks = [{"name": row["block"], **row} for row in table.rows]
            show_json({"name": method, "blocks": blocks, **steps, "views": table.views})
            return
        headings = {
            "block": "block",
            "home": "home",
            "sees": "client sees",
            "writes": "client writes",
            "phases": "phases",
        }
        show_table(headings, table.rows)
        for title, lines in steps.items():
            for number, line in enumerate(lines or ["nothing"], 1):
                say(f"{title} {number}: {line}" if lines else f"{title}: {line}")
        say(f"views: {', '.join(table.views)}")

    stoppable(action)


def _end_of_check(states: Mapping[int, str]) -> str:
    """How many invariants hold, which fail, and how many were not looked at."""
    counts = Counter(states.values())
    hold = f"{counts['holds']} of {count_of(len(states), 'invariant')} hold"
    numbers = ", ".join(str(number) for number, state in states.items() if state == "fails")
    fails = f"{counts['fails']} {'fails' if counts['fails'] == 1 else 'fail'} ({numbers})"
    idle = [state for state in ("not applicable", "not checked") if counts[state]]
    failing = [fails] if numbers else []
    return ", ".join([hold, *failing, *(f"{counts[state]} {state}" for state in idle)])


_MARKS = {"holds": "ok", "fails": "FAILED"}


def check(method: Name, code: CodeFiles = None, as_json: AsJson = False) -> None:
    """Check a method against every invariant of the contract."""

    def action() -> None:
        from fedblocks.config.registry import Methods
        from fedblocks.testing import EXAMPLES, check_method, example_for

        read_code(code)
        example = EXAMPLES[method]() if method in EXAMPLES else example_for(Methods()[method])
        verdicts = []
        for verdict in check_method(example):
            verdicts.append(verdict)
            if not as_json:
                mark = _MARKS.get(verdict.state, "-")
                say(f"{verdict.number:2}  {mark:6}  {verdict.says}")
                if verdict.detail:
                    say("      " + verdict.detail.replace("\n", "\n      "))
        if as_json:
            show_json([{**vars(verdict), "state": verdict.state} for verdict in verdicts])
        else:
            states = {verdict.number: verdict.state for verdict in verdicts}
            say(f"{method}: {_end_of_check(states)}")
        if not all(verdict.passed for verdict in verdicts):
            raise typer.Exit(CHECK_FAILED)

    stoppable(action)
