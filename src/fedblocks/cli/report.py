"""`fedblocks report`: a run or a comparison as one HTML file, and as figures for papers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedblocks.cli.output import AsJson, say, show_json, stoppable


def report(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of a run or of a comparison.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="The HTML file; default: FOLDER/report.html")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option("--figures", metavar="FOLDER", help="Write every chart there as PDF and SVG, too.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write one HTML file with tables and charts; it opens without a network."""

    def action() -> None:
        from fedblocks.reports.html import write_figures, write_report

        path = write_report(folder, out)
        drawn = write_figures(folder, figures) if figures is not None else []
        if as_json:
            more = {"figures": [str(figure) for figure in drawn]} if figures is not None else {}
            show_json({"name": path.name, "file": str(path), "bytes": path.stat().st_size, **more})
            return
        say(f"{path}: {path.stat().st_size / 1e6:.1f} MB; open it in a browser")
        if figures is not None:
            say(f"{figures}: {len(drawn)} figures")

    stoppable(action)
