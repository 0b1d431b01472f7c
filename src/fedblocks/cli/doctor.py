"""`fedblocks doctor`: whether everything is there, and what to do if not."""

from __future__ import annotations

from pathlib import Path

import typer

from fedblocks.cli.output import AsJson, say, show_json, show_table
from fedblocks.core.errors import count_of

PROBLEM = 7  # exit code


def doctor(as_json: AsJson = False) -> None:
    """Check the installation.

    Looks at Python, torch, GPU, packages, data, disk and terminal. Each problem comes with a fix.
    """
    from fedblocks.cli.health import findings

    results = list(findings(Path("runs")))
    problems = sum(one.state == "problem" for one in results)
    if as_json:
        show_json(
            [
                {"name": one.check, "state": one.state, "detail": one.detail, "fix": one.fix}
                for one in results
            ]
        )
    else:
        rows = [vars(one) for one in results]
        show_table({"check": "check", "state": "", "detail": "found", "fix": "fix"}, rows)
        say("no problems" if not problems else count_of(problems, "problem"))
    if problems:
        raise typer.Exit(PROBLEM)
