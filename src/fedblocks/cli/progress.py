"""A run as it goes: one live line on a terminal, a plain line a round anywhere else."""

from __future__ import annotations

import os
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any

from fedblocks.cli.output import clean, console
from fedblocks.core.errors import count_of

if TYPE_CHECKING:
    from fedblocks.runs.progress import RoundDone
    from fedblocks.runs.storage.record import Note

BARS = "▁▂▃▄▅▆▇█"


class Watch:
    """What `run` tells, shown; `file` is the error stream where JSON goes to the output."""

    def __init__(self, title: str, quiet: bool = False, file: Any = None) -> None:
        self._title, self._quiet = title, quiet
        self._console = console(file or sys.stdout)
        live = self._console.is_terminal and not quiet and os.environ.get("TERM") != "dumb"
        self._bar = _bar(self._console) if live else None
        self._task = None
        if self._bar is not None:
            self._task = self._bar.add_task(clean(title), total=None, details="")
        self._curve: list[float] = []

    def __enter__(self) -> Watch:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def on_round(self, done: RoundDone) -> None:
        """One round more."""
        self._curve += [done.scores["validation"]] if "validation" in done.scores else []
        if self._bar is not None and self._task is not None:
            text = f"{sparkline(self._curve)}  {_brief(done)}"
            self._bar.update(self._task, total=done.rounds, completed=done.round, details=text)
        elif not self._quiet:
            self._line(f"{self._title}  {done.line()}")

    def on_note(self, note: Note) -> None:
        """Something that a reader should know."""
        if not self._quiet or note.level == "warning":
            self._line(f"{note.level}: {note.text}")

    def _line(self, text: str) -> None:
        self._console.print(clean(text), soft_wrap=True)


def sparkline(values: list[float], most: int = 20) -> str:
    """The last few values as little bars, from the lowest to the highest of them."""
    shown = values[-most:]
    low, high = min(shown, default=0.0), max(shown, default=0.0)
    return "".join(BARS[int((v - low) / ((high - low) or 1) * (len(BARS) - 1))] for v in shown)


def _brief(done: RoundDone) -> str:
    parts = [
        *done.results(),
        *done.remarks(),
        count_of(done.clients, "client"),
        f"{(done.bytes_down + done.bytes_up) / 1e6:.2f} MB",
    ]
    return "  ".join(parts + ([f"{done.refused} refused"] if done.refused else []))


def _bar(where: Any) -> Any:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    text = TextColumn("{task.description}", markup=False)
    details = TextColumn("{task.fields[details]}", markup=False)
    return Progress(
        text, BarColumn(20), MofNCompleteColumn(), details, TimeRemainingColumn(), console=where
    )
