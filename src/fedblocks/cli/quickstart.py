"""`fedblocks quickstart`: four methods on handwritten digits, and a table."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedblocks.cli.output import AsJson, say, show_json, show_table, stoppable

if TYPE_CHECKING:
    from fedblocks.runs.result import RunResult

METHODS = ("fedavg", "fedper", "ditto", "pfedmb")
HEADINGS = {
    "name": "method",
    "mean": "accuracy, mean",
    "bottom_decile": "bottom decile",
    "worst": "worst client",
    "below_reference": "below FedAvg",
    "megabytes": "MB",
    "seconds": "seconds",
}


def quickstart(
    out: Annotated[Path | None, typer.Option("--out", metavar="FOLDER", help="Where the runs go.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of models, data and batches.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Train FedAvg, FedPer, Ditto and pFedMB on handwritten digits and compare them."""

    def action() -> None:
        from fedblocks.reports.tables import leaderboard
        from fedblocks.runs.run import free_folder

        folder = out if out is not None else free_folder("quickstart")
        if not as_json:
            say("20 clients share 1,797 handwritten digits. They belong to 4 hidden groups: each group has its own")
            say("label frequencies, its own camera angle, and its own meaning of the labels.")
        rows = leaderboard({name: _trained(name, folder, seed, as_json) for name in METHODS}, reference="fedavg")
        if as_json:
            show_json([{**row, "folder": str(folder / row["name"])} for row in rows])
            return
        show_table(HEADINGS, rows)
        say("Accuracy on test data after the last round; each client counts the same.")
        say(f"Everything is in {folder}. Next: fedblocks methods, fedblocks plan pfedmb, fedblocks run digits-ifca")

    stoppable(action)


def _trained(name: str, folder: Path, seed: int, as_json: bool) -> RunResult:
    from fedblocks.cli.watch import Watch
    from fedblocks.runs.presets import read_config
    from fedblocks.runs.run import run

    config = read_config(f"digits-{name}", [f"seed={seed}", f"data.seed={seed}"])
    with Watch(name, file=sys.stderr if as_json else None) as watch:
        return run(config, folder / name, watch.on_round)
