"""A run on a terminal: one screen that stays up to date, or lines where the output goes
to a file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fedblocks.runs.curves import MEAN_LOSS
from fedblocks.runs.result import RunResult, result_of
from fedblocks.runs.storage.folder import RunFolder
from fedblocks.watch.places import Place

EVERY = 0.5  # seconds between two looks
NOTES = 3  # that are shown
LOSS = (
    f"SELECT {MEAN_LOSS} AS loss FROM client_metrics WHERE part = ? AND "
    "view = 'personal' AND examples > 0 AND round = (SELECT MAX(round) FROM means)"
)


class View(NamedTuple):
    """What a terminal shows of a run."""

    result: RunResult
    curve: list[float]  # mean of the main metric in each evaluation
    part: str  # of the data that the curve is of
    clients: int  # in the last round
    refused: int  # updates, in all rounds
    loss: float | None  # mean over clients in the last evaluation
    left: float | None  # seconds, if the rounds to come take as long as those that were

    @property
    def rows(self) -> dict[str, str]:
        """One line each."""
        run = self.result
        done = f"{run.rounds} of {run.config.rounds}"
        last = (
            f"{run.metric.show(self.curve[-1])} ({self.part}, mean over clients)"
            if self.curve
            else "not evaluated yet"
        )
        rows = {
            "run": str(run.folder),
            "status": run.status,
            "method": run.config.method.name,
            "rounds": done,
        }
        rows |= {
            run.metric.name: last,
            **({"loss": f"{self.loss:.4g}"} if self.loss is not None else {}),
            "clients": f"{self.clients} in the last round",
            "refused updates": str(self.refused),
        }
        rows |= {
            "sent": f"{(run.bytes_down + run.bytes_up) / 1e6:.2f} MB",
            "time": f"{run.seconds:.1f} s",
        }
        if run.status == "running" and self.left is not None:
            rows["left, about"] = f"{self.left:.0f} s"
        return rows | {f"note {i}": note["text"] for i, note in enumerate(run.notes[-NOTES:], 1)}


def view_of(path: Path) -> View:
    """A look at a run; says what is wrong with a folder that is none."""
    with RunFolder.open(path) as folder:
        result = result_of(folder)
        parts = result.config.evaluation.parts
        part = "validation" if "validation" in parts else parts[0]
        means = folder.store.rows(
            "SELECT accuracy FROM means WHERE part = ? AND view = 'personal' ORDER BY round", part
        )
        last = folder.store.rows("SELECT clients FROM rounds ORDER BY round DESC LIMIT 1")
        refused = folder.store.rows("SELECT COUNT(*) AS n FROM refusals")[0]["n"]
        loss = folder.store.rows(LOSS, part)[0]["loss"]
    pace = result.warm_seconds / result.rounds if result.rounds else None
    left = None if pace is None else pace * (result.config.rounds - result.rounds)
    clients = last[0]["clients"] if last else 0
    curve = [row["accuracy"] for row in means]
    return View(result, curve, part, clients, refused, loss, left)


def views(path: Path, sleep: Callable[[float], None] = time.sleep) -> Iterator[View]:
    """One look after another, until the run has ended."""
    place = Place.of(path)
    while True:
        place.refuse_moved()
        view = view_of(path)
        yield view
        if view.result.status != "running":
            return
        sleep(EVERY)


def lines(path: Path, sleep: Callable[[float], None] = time.sleep) -> Iterator[str]:
    """A line for each new state, for logs."""
    before = ""
    for view in views(path, sleep):
        logged = {*LOGGED, view.result.metric.name}
        text = "  ".join(f"{name} {value}" for name, value in view.rows.items() if name in logged)
        if text != before:
            yield text
        before = text


LOGGED = ("status", "rounds", "loss", "refused updates", "sent")


def table(view: View, curve: str) -> Any:
    """The screen."""
    from rich.box import SIMPLE
    from rich.table import Table
    from rich.text import Text

    screen = Table(box=SIMPLE, show_header=False, pad_edge=False)
    for name, value in view.rows.items():
        screen.add_row(
            Text(name, style="dim"),
            Text(f"{value}  {curve}" if name == view.result.metric.name else value),
        )
    return screen
