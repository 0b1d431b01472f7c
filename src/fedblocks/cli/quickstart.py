"""`fedblocks quickstart`: nine methods on handwritten digits, a leaderboard, and a report."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from queue import Empty
from typing import Annotated, Any, NamedTuple

import typer

from fedblocks.cli.output import AsJson, clean, console, say, show_json, show_table, stoppable
from fedblocks.core.errors import Interrupted, RunFolderError, UserError

# Local lets the first line appear at once; then the slowest first, so that both processes end at
# about the same time.
METHODS = ("local", "flow", "fedmn", "modfl", "fedem", "pfedmb", "fedper", "fedavg_ft", "fedavg")
HEADINGS = {
    "name": "method",
    "mean": "accuracy, mean",
    "bottom_decile": "bottom decile",
    "worst": "worst client",
    "below_reference": "worse off than Local",
    "megabytes": "MB",
    "seconds": "seconds",
}
INTRODUCTION = """\
20 clients share 1,797 handwritten digits. They belong to 4 hidden groups: each group has its own
label frequencies, its own camera angle, and its own meaning of the labels. Nine methods learn from
them, two at a time."""
REMARKS = """\
Accuracy on test data after the last round; each client counts the same. fedavg_ft is FedAvg+. Flow
has a small convolutional net, ModFL two generations of devices of which one has that net, and all
others a perceptron. Seconds are those of typical rounds; compilation and warm-up are left out."""

_queue: Any = None  # the queue of a process that trains, for what it tells of rounds
_stopped = False  # whether Ctrl-C was pressed in such a process


class RoundNews(NamedTuple):
    """A round of one method, in plain values: torch need not be imported to show it,
    which takes seconds.
    """

    name: str
    round: int
    line: str
    validation: float | None  # mean accuracy, if the models were tried


def quickstart(
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FOLDER", help="Folder for the runs; default: runs/quickstart-001, ..."
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="Seed of models, data and batches.")
    ] = 3,
    rounds: Annotated[
        int, typer.Option("--rounds", min=1, help="Rounds of each method; fewer are faster.")
    ] = 40,
    as_json: AsJson = False,
) -> None:
    """Train nine methods on handwritten digits and compare them.

    Writes a report; needs no network.
    """

    def action() -> None:
        folder = _new_folder(out)
        if not as_json:
            say(INTRODUCTION)
        with Bars(rounds, sys.stderr if as_json else sys.stdout) as bars:
            _train(folder, seed, rounds, bars.tell)
        rows = _leaderboard(folder)
        page, why_not = _report(folder)
        if as_json:
            about = {"name": folder.name, "folder": str(folder), "report": page and str(page)}
            show_json({**about, "methods": rows})
            return
        show_table(HEADINGS, rows)
        say(REMARKS)
        say("\n".join(_ideas(folder, rows)))
        say(
            f"Everything is in {folder}. Next: fedblocks methods, fedblocks plan pfedmb, "
            f"fedblocks run digits-ifca"
        )
        say(f"Open the report in a browser: {page.resolve()}" if page else why_not)

    stoppable(action)


def _new_folder(out: Path | None) -> Path:
    """A folder without runs: old ones are never mixed with new ones."""
    if out is None:
        return next(
            path for n in count(1) if not (path := Path("runs") / f"quickstart-{n:03d}").exists()
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunFolderError(f"{out} is not an empty folder", "choose another folder with --out")
    return out


def _train(folder: Path, seed: int, rounds: int, tell: Callable[[RoundNews], None]) -> None:
    """All runs, in as many processes as there are cores, but two at most; each has one thread."""
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    context = get_context("spawn")
    queue = context.Queue()
    workers = min(2, os.cpu_count() or 1, len(METHODS))
    with ProcessPoolExecutor(workers, context, initializer=_begin, initargs=(queue,)) as pool:
        waiting = [
            pool.submit(_train_method, name, folder / name, seed, rounds) for name in METHODS
        ]
        try:
            while not all(one.done() for one in waiting):
                with suppress(Empty):
                    tell(RoundNews(*queue.get(timeout=0.1)))
            for one in waiting:
                one.result()
        except KeyboardInterrupt as error:
            pool.shutdown(cancel_futures=True)
            raise Interrupted(
                f"stopped; what was trained is in {folder}", "start the command again"
            ) from error
        except BrokenProcessPool as error:
            fix = (
                "see that there is memory (fedblocks doctor), or train one: fedblocks run "
                "quickstart-fedper"
            )
            raise UserError("a process that trained was ended from outside", fix) from error
        except UserError:
            pool.shutdown(cancel_futures=True)
            raise
    while not queue.empty():
        tell(RoundNews(*queue.get()))


def _begin(queue: Any) -> None:
    """In a process that trains: whom to tell, and what Ctrl-C does between two runs; a
    run ends its round by itself.
    """
    global _queue
    _queue = queue
    signal.signal(signal.SIGINT, _stop)


def _stop(*_: object) -> None:
    global _stopped
    _stopped = True


def _train_method(name: str, folder: Path, seed: int, rounds: int) -> None:
    from fedblocks.config.presets import read_config
    from fedblocks.runs.progress import RoundDone
    from fedblocks.runs.run import run

    def on_round(done: RoundDone) -> None:
        _queue.put((name, done.round, done.line(), done.scores.get("validation")))

    changes = [f"seed={seed}", f"data.seed={seed}", f"rounds={rounds}"]
    if _stopped:
        return
    try:
        run(read_config(f"quickstart-{name}", changes), folder, on_round)
    except Interrupted:
        _stop()  # the next one in the queue is not begun
        raise


def _leaderboard(folder: Path) -> list[dict[str, Any]]:
    from fedblocks.reports.tables import leaderboard
    from fedblocks.runs.result import load_run

    rows = leaderboard({name: load_run(folder / name) for name in METHODS}, reference="local")
    for row in rows:
        row["folder"] = str(folder / row["name"])
        if row["name"] == "local":  # as in a comparison: nobody is compared with itself
            row["below_reference"] = None
    return rows


def _ideas(folder: Path, rows: list[dict[str, Any]]) -> list[str]:
    """What each of the modular methods found, and why a method is below Local, if one is."""
    from fedblocks.reports.ideas import REASONS, tell_idea
    from fedblocks.runs.federations import federation_of
    from fedblocks.runs.result import load_run

    hidden = federation_of(load_run(folder / "local").config).tags["group"].tolist()
    ideas = {name: tell_idea(name, load_run(folder / name), hidden) for name in METHODS}
    alone = next(row["mean"] for row in rows if row["name"] == "local")
    below = [row["name"] for row in rows if row["mean"] < alone]
    return [
        *(f"{name}: {idea}." for name, idea in ideas.items() if idea),
        *(f"{name} is below Local: {REASONS[name]}." for name in below),
    ]


def _report(folder: Path) -> tuple[Path | None, str]:
    """The page; or none, and what to install for one."""
    from importlib.util import find_spec

    from fedblocks.reports.html import write_report

    if find_spec("plotly") is None:
        install = 'pip install "fedblocks[report]"'
        return None, f"For a report with charts: {install}, then fedblocks report {folder}"
    return write_report(folder), ""


class Bars:
    """A bar for each method on a terminal; anywhere else a line whenever the models are tried."""

    def __init__(self, rounds: int, file: Any) -> None:
        self._rounds = rounds
        self._console = console(file)
        live = self._console.is_terminal and os.environ.get("TERM") != "dumb"
        self._bars = self._all() if live else None
        self._started = False

    def __enter__(self) -> Bars:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def tell(self, progress: RoundNews) -> None:
        """One round more of one method."""
        if self._bars is not None:
            more = {}
            if progress.validation is not None:
                more["details"] = f"validation {progress.validation:.1%}"
            self._bars.update(METHODS.index(progress.name), completed=progress.round, **more)
        elif not self._started or progress.round % 10 == 0 or progress.round == self._rounds:
            self._console.print(clean(f"{progress.name}  {progress.line}"), soft_wrap=True)
        self._started = True

    def _all(self) -> Any:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        text = TextColumn("{task.description}", markup=False)
        details = TextColumn("{task.fields[details]}", markup=False)
        bars = Progress(text, BarColumn(20), MofNCompleteColumn(), details, console=self._console)
        for name in METHODS:
            bars.add_task(name, total=self._rounds, details="")
        return bars
