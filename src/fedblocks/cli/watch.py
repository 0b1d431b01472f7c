"""`fedblocks watch`: a run as it goes, in the browser or on the terminal."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from fedblocks.cli.output import clean, console, say
from fedblocks.core.requirements import require_for_watching


def watch(
    folder: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="Folder of a run, a comparison or several runs."),
    ],
    terminal: Annotated[
        bool, typer.Option("--terminal", help="Show one run here instead of in a browser.")
    ] = False,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port of the page; 0 takes a free one.")
    ] = 0,
    open_it: Annotated[
        bool, typer.Option("--open", help="Also open the page in the browser.")
    ] = False,
) -> None:
    """Show a run live, in the browser or on the terminal.

    The run is only read. One that has not begun is waited for.
    """
    if not terminal:
        require_for_watching()
    try:
        wait(folder)
        _on_the_terminal(folder) if terminal else _in_the_browser(folder, port, open_it)
    except KeyboardInterrupt:
        say("watching has ended; the run goes on")


def wait(folder: Path, sleep: Callable[[float], None] = time.sleep) -> None:
    """Wait for a run that has not begun."""
    from fedblocks.watch.look import has_begun

    if not has_begun(folder):
        say(f"no run has begun in {folder} yet; waiting for it (Ctrl-C ends)")
    while not has_begun(folder):
        sleep(0.5)


def _in_the_browser(folder: Path, port: int, open_it: bool) -> None:
    from fedblocks.watch.server import Live

    live = Live(folder, port)
    say(
        f"{live.url}\nThe page can be seen on this machine only. Ctrl-C ends watching, not the run."
    )
    if open_it:
        import webbrowser

        webbrowser.open(live.url)
    live.run()


def _on_the_terminal(folder: Path) -> None:
    from fedblocks.cli.progress import sparkline
    from fedblocks.watch.terminal import lines, table, views

    where = console()
    if not where.is_terminal:
        for line in lines(folder):
            where.print(clean(line), soft_wrap=True)
        return
    from rich.live import Live as Screen

    with Screen(console=where, auto_refresh=False) as screen:
        for view in views(folder):
            screen.update(table(view, sparkline(view.curve)), refresh=True)
