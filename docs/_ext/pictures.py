"""Puts SVG pictures into the page itself, where they take the colours of the light or
dark theme.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx


def inline(app: Sphinx, tree: nodes.document) -> None:
    for image in list(tree.findall(nodes.image)):
        path = Path(app.srcdir, image["uri"])
        if path.suffix == ".svg":
            app.env.note_dependency(str(path))
            about = escape(image.get("alt", ""), quote=True)
            html = (
                f'<div class="picture" role="img" '
                f'aria-label="{about}">{path.read_text(encoding="utf-8")}</div>'
            )
            image.replace_self(nodes.raw("", html, format="html"))


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("doctree-read", inline)
    return {"parallel_read_safe": True}
