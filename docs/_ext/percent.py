"""Reads notebooks that are Python files in jupytext's percent format as pages."""

from __future__ import annotations

import jupytext
from myst_parser.parsers.sphinx_ import MystParser
from sphinx.application import Sphinx


class PercentParser(MystParser):
    """A notebook as Markdown: its text cells, and its code cells as Python blocks."""

    supported = ("percent",)

    def parse(self, inputstring: str, document: object) -> None:
        cells = jupytext.reads(inputstring, fmt="py:percent").cells
        super().parse("\n\n".join(map(as_markdown, cells)) + "\n", document)


def as_markdown(cell: dict[str, str]) -> str:
    return (
        cell["source"] if cell["cell_type"] == "markdown" else f"```python\n{cell['source']}\n```"
    )


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_source_suffix(".py", "percent")
    app.add_source_parser(PercentParser)
    return {"parallel_read_safe": True}
