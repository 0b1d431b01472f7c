"""`fedblocks tune`: the best options by the main metric on validation data."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedblocks.cli.code import CodeFiles, read_code
from fedblocks.cli.output import AsJson, clean, console, say, show_json, stoppable
from fedblocks.cli.runs import Preset
from fedblocks.core.errors import Interrupted
from fedblocks.core.requirements import require_packages

if TYPE_CHECKING:
    from fedblocks.runs.grids.tune import Trial, Tuned
    from fedblocks.runs.storage.record import Note

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
    """Search for the options that do best on validation data.

    Test data are never looked at. Run it again to continue after a stop.
    """

    def action() -> None:
        require_packages("a search", "tune", "optuna")
        from fedblocks.runs.grids.tune import tune as search

        read_code(code)
        shown = console(sys.stderr if as_json else sys.stdout)
        tell = None if quiet else lambda trial: shown.print(clean(_line(trial)), soft_wrap=True)

        def warn(note: Note) -> None:
            if note.level == "warning":
                shown.print(clean(f"warning: {note.text}"), soft_wrap=True)

        try:
            tuned = search(config, changes or [], trials, out, tell, warn)
        except KeyboardInterrupt as error:
            fix = "the same command goes on from there"
            raise Interrupted("stopped; every trial that ended counts", fix) from error
        if as_json:
            show_json(_as_json(tuned))
            return
        say(f"best of {len(tuned.trials)}: {_line(tuned.best)}")
        say(
            f"Validation {tuned.best.metric.name}, every client counts the same. Everything is in "
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
            best.metric.name: best.score,
            "options": dict(best.options),
        },
        "trials": [_trial_json(trial) for trial in tuned.trials],
        "command": tuned.command,
    }


def _trial_json(trial: Trial) -> dict[str, Any]:
    return {
        "name": f"trial-{trial.number:03d}",
        "number": trial.number,
        "state": trial.state,
        **({"reason": trial.reason} if trial.reason else {}),
        trial.metric.name: trial.score,
        "options": dict(trial.options),
    }


def _line(trial: Trial) -> str:
    options = "  ".join(f"{name}={value}" for name, value in trial.options.items())
    if trial.reason:
        return f"trial {trial.number}  refused  {options}: {trial.reason}"
    score = "-" if trial.score is None else trial.metric.show(trial.score)
    early = "  left early" if trial.state == "pruned" else ""
    return f"trial {trial.number}  validation {score}  {options}{early}"
