"""`fedblocks report`: a run or a comparison as one HTML file, and as figures for papers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedblocks.cli.output import AsJson, say, show_json, stoppable
from fedblocks.core.errors import count_of
from fedblocks.core.requirements import require_folder, require_packages


def report(
    folder: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="Folder of a run, a comparison or several runs."),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="HTML file; default: FOLDER/report.html."),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(
            "--figures", metavar="FOLDER", help="Also write every chart there, as PDF and SVG."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a report with tables and charts as one HTML file.

    It opens without a network.
    """

    def action() -> None:
        require_folder(folder)
        require_packages("a report", "report", "plotly")
        if figures is not None:
            require_packages("a figure", "plot", "matplotlib")
        from fedblocks.reports.html import write_figures, write_report

        path = write_report(folder, out)
        drawn = write_figures(folder, figures) if figures is not None else []
        if as_json:
            more = {"figures": [str(figure) for figure in drawn]} if figures is not None else {}
            show_json({"name": path.name, "file": str(path), "bytes": path.stat().st_size, **more})
            return
        say(f"{path}: {path.stat().st_size / 1e6:.1f} MB; open it in a browser")
        if figures is not None:
            say(f"{figures}: {count_of(len(drawn), 'figure')}")

    stoppable(action)
