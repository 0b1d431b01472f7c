"""Completes the menu, so that a new page is found at once: pages that it does not name,
and those of all methods.
"""

from __future__ import annotations

from pathlib import Path

from sphinx.application import Sphinx

HERE = "<!-- other pages -->"
METHODS = "\n```{toctree}\n:hidden:\n:glob:\n\n*\n```\n"


def complete(app: Sphinx, page: str, source: list[str]) -> None:
    if page == "index":
        named = {line.strip() for line in source[0].splitlines()}
        docs = Path(app.srcdir)
        pages = [
            str(path.relative_to(docs).with_suffix(""))
            for path in sorted([*docs.glob("*.md"), *docs.glob("howto/*.md")])
        ]
        source[0] = source[0].replace(
            HERE, "\n".join(name for name in pages if name not in {*named, "index"})
        )
    if page == "methods/index":
        source[0] += METHODS


def always(app: Sphinx, env: object, *known: set[str]) -> list[str]:
    """A new page changes the menu without changing its file."""
    return ["index", "methods/index"]


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", complete)
    app.connect("env-get-outdated", always)
    return {"parallel_read_safe": True}
