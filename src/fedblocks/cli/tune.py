"""`fedblocks tune`: the best options by validation accuracy."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedblocks.cli.code import CodeFiles, read_code
from fedblocks.cli.output import AsJson, clean, console, say, show_json, stoppable
from fedblocks.cli.runs import Preset
from fedblocks.core.errors import Interrupted

if TYPE_CHECKING:
    from fedblocks.runs.grids.tune import Trial, Tuned

Search = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUES",
        help="Range (method.lr=0.01..1:log, method.branches=2..8), choice (method.epochs=1|3|5) or "
        "fixed value (rounds=20); may be repeated.",
    ),
]


def tune(
    config: Preset,
    changes: Search = None,
    trials: Annotated[
        int, typer.Option("--trials", min=1, help="Trials in all, with earlier calls.")
    ] = 20,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="Folder to begin or to continue.")
    ] = None,
    code: CodeFiles = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show only the result.")] = False,
    as_json: AsJson = False,
) -> None:
    """Search for the options with the best validation accuracy.

    Test data are never looked at. Run it again to continue after a stop.
    """

    def action() -> None:
        from fedblocks.runs.grids.tune import tune as search

        read_code(code)
        shown = console(sys.stderr if as_json else sys.stdout)
        tell = None if quiet else lambda trial: shown.print(clean(_line(trial)), soft_wrap=True)
        try:
            tuned = search(config, changes or [], trials, out, tell)
        except (KeyboardInterrupt, Interrupted) as error:
            fix = "the same command goes on from there"
            raise Interrupted("stopped; every trial that ended counts", fix) from error
        if as_json:
            show_json(_as_json(tuned))
            return
        say(f"best of {len(tuned.trials)}: {_line(tuned.best)}")
        say(
            f"Validation accuracy, every client counts the same. Everything is in "
            f"{tuned.folder}. Run the best:"
        )
        say(" ".join([tuned.command, *(f"--code {source}" for source in code or [])]))

    stoppable(action)


def _as_json(tuned: Tuned) -> dict[str, Any]:
    best = tuned.best
    return {
        "name": tuned.folder.name,
        "folder": str(tuned.folder),
        "best": {
            "trial": best.number,
            "accuracy": best.accuracy,
            "options": dict(best.options),
        },
        "trials": [{"name": f"trial-{trial.number:03d}", **vars(trial)} for trial in tuned.trials],
        "command": tuned.command,
    }


def _line(trial: Trial) -> str:
    options = "  ".join(f"{name}={value}" for name, value in trial.options.items())
    accuracy = "-" if trial.accuracy is None else f"{trial.accuracy:.1%}"
    early = "  left early" if trial.state == "pruned" else ""
    return f"trial {trial.number}  validation {accuracy}  {options}{early}"
