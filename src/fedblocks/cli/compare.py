"""`fedblocks compare`: methods side by side over several seeds."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedblocks.cli.code import CodeFiles, read_code
from fedblocks.cli.completion import some_methods
from fedblocks.cli.output import AsJson, Changes, say, show_json, show_table, stoppable
from fedblocks.cli.runs import Preset
from fedblocks.core.errors import Interrupted

if TYPE_CHECKING:
    from fedblocks.cli.progress import Watch
    from fedblocks.runs.progress import OnNote, OnRound, RoundDone

HEADINGS = {
    "name": "method",
    "mean": "accuracy, mean",
    "bottom_decile": "bottom decile",
    "worst": "worst client",
    "below_local": "worse off than Local",
    "local": "difference to Local",
    "fedavg": "difference to FedAvg",
    "megabytes": "MB",
    "seconds": "seconds",
}

Methods = Annotated[
    str | None,
    typer.Option(
        "--methods",
        metavar="A,B,...",
        help="Methods to compare with the baselines.",
        autocompletion=some_methods,
    ),
]


def compare(
    config: Preset,
    methods: Methods = None,
    seeds: Annotated[
        int | None,
        typer.Option("--seeds", help="Seeds of each method; default: 6, or as the file says."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="Folder to begin or to continue.")
    ] = None,
    changes: Changes = None,
    code: CodeFiles = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Show only warnings and the result.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare methods over several seeds.

    Local, FedAvg and FedAvg+ are always among them. Run it again to continue after a stop.
    """

    def action() -> None:
        from fedblocks.reports.compare import compare as start
        from fedblocks.runs.timing import describe_seconds

        read_code(code)
        names = None
        if methods is not None:
            names = [name.strip() for name in methods.split(",") if name.strip()]
        progress = _Progress(quiet, sys.stderr if as_json else None)
        try:
            comparison = start(config, names, seeds, out, changes or [], progress.on_run)
        except KeyboardInterrupt as error:
            fix = "the same command goes on from there"
            raise Interrupted("stopped; every whole round is stored", fix) from error
        finally:
            progress.close()
        if as_json:
            show_json(comparison.as_json())
            return
        headings = {**HEADINGS, "mean": f"{comparison.metric.name}, mean"}
        show_table(headings, [_cells(row) for row in comparison.rows])
        for text in comparison.warnings:
            say(f"warning: {text}")
        say(f"{comparison.verdict}.")
        say(
            "Test data after the last round, every client counts the same; differences with "
            "their 95 % intervals,"
        )
        say("from a paired bootstrap over seeds and then clients.")
        say(describe_seconds(comparison.rows))
        say(f"Everything is in {comparison.folder}. Next: fedblocks report {comparison.folder}")

    stoppable(action)


def _cells(row: dict[str, Any]) -> dict[str, Any]:
    from fedblocks.reports.comparison_text import difference_text

    local = difference_text(row["to_local"], row["against_local"])
    fedavg = difference_text(row["to_fedavg"], row["against_fedavg"])
    return {**row, "local": local, "fedavg": fedavg}


class _Progress:
    """One line or bar for the run that is going on."""

    def __init__(self, quiet: bool, file: Any) -> None:
        self._quiet, self._file = quiet, file
        self._watch: Watch | None = None
        self._warned: set[str] = set()

    def on_run(self, method: str, seed: int, number: int) -> tuple[OnRound, OnNote]:
        """The next run; a finished one tells nothing, so its line appears with its first round."""
        self.close()
        title = f"{number}: {method}, seed {seed}"

        def on_round(done: RoundDone) -> None:
            self._open(title).on_round(done)

        def on_note(note: Any) -> None:
            if note.level == "warning" and note.text not in self._warned:  # the same for every run
                self._warned.add(note.text)
                self._open(title).on_note(note)

        return on_round, on_note

    def close(self) -> None:
        """No run is going on."""
        if self._watch is not None:
            self._watch.__exit__(None, None, None)
            self._watch = None

    def _open(self, title: str) -> Watch:
        from fedblocks.cli.progress import Watch

        if self._watch is None:
            self._watch = Watch(title, self._quiet, self._file).__enter__()
        return self._watch
