"""How commands speak: tables, JSON and errors; colours and live lines on a terminal only."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeVar

import typer

from fedblocks.core.errors import Interrupted, printable
from fedblocks.core.finite import with_finite_numbers

if TYPE_CHECKING:
    from rich.console import Console

P = ParamSpec("P")
R = TypeVar("R")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="Change a field, e.g. method.lr=0.05; may be repeated."
    ),
]

PLAIN_WIDTH = 160  # columns of a table that is not shown on a terminal


def console(file: Any = None) -> Console:
    """Where text goes; rich honours NO_COLOR and leaves out all control characters when
    it is not a terminal.
    """
    from rich.console import Console

    file = file or sys.stdout
    return Console(
        file=file,
        highlight=False,
        markup=False,
        emoji=False,
        width=None if file.isatty() else PLAIN_WIDTH,
    )


def clean(text: object) -> str:
    """Lines of text without control characters."""
    return printable(text, keep="\n")


def say(text: object) -> None:
    """A line of text."""
    console().print(clean(text), soft_wrap=True)


def show_json(value: Any) -> None:
    """Plain values as JSON; what is not a number becomes null."""
    print(json.dumps(with_finite_numbers(value), indent=2, allow_nan=False))


def show_table(
    columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]], title: str = ""
) -> None:
    """A table: columns by key with their heading, numbers to the right."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False)
    for key, heading in columns.items():
        numbers = all(isinstance(row.get(key), int | float | None) for row in rows)
        table.add_column(heading, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(row.get(key))) for key in columns))
    console().print(table)


def show_error(message: str, fix: str) -> None:
    """One block on the error stream: what is wrong and where, and what to do."""
    from rich.text import Text

    block = Text("error: ", style="bold red").append(clean(message), style="not bold default")
    if fix:
        block.append("\n  fix: ", style="bold green").append(clean(fix), style="not bold default")
    console(sys.stderr).print(block, soft_wrap=True)


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Show what a run warns of as a line on the error stream, without the place in the code."""
    from fedblocks.runs.progress import RunWarning

    with warnings.catch_warnings():
        others = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if not issubclass(category, RunWarning):
                others(message, category, *place, **more)
                return
            console(sys.stderr).print(clean(f"warning: {message}"), soft_wrap=True)

        warnings.showwarning = show
        yield


def stoppable(action: Callable[[], R]) -> R:
    """Ctrl-C where no run is going on yet ends the command with its own exit code."""
    try:
        return action()
    except Interrupted:
        raise
    except KeyboardInterrupt as error:
        raise Interrupted("stopped; nothing was written", "start the command again") from error


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3f}" if isinstance(value, float) else clean(value)
