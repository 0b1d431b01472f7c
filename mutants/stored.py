"""Mutants that are remembered: survivors, planted again first, and those that change nothing."""

from __future__ import annotations

import tomllib
from collections.abc import Container, Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

import tomli_w

from mutants.project import Project
from mutants.sites import Site, identity_key

SURVIVORS = "survivors.toml"
EQUIVALENT = "equivalent.toml"
CLOSED = "Closed"  # a note that begins so names the test that catches it now
HEADS = {
    SURVIVORS: "# No test caught these once. They are planted again first, whatever the seed.\n",
    EQUIVALENT: "# No test can catch these. They are not planted.\n",
}


def load(project: Project, name: str) -> dict[str, dict[str, Any]]:
    """Entries by key, in the order of the file."""
    path = project.notes / name
    entries = tomllib.loads(path.read_text()).get("mutant", []) if path.exists() else []
    return {key_of(entry): entry for entry in entries}


def key_of(entry: dict[str, Any]) -> str:
    named = {f.name for f in fields(Site)}
    return identity_key({"ordinal": 0, **{k: v for k, v in entry.items() if k in named}})


def add_survivors(project: Project, sites: Iterable[Site], possible: Container[str]) -> None:
    """Remember what survived now; notes written by hand stay, and what is not possible any more
    (the line is gone, or the bug is equivalent) is forgotten.
    """
    earlier = load(project, SURVIVORS)
    entries = {key: entry for key, entry in earlier.items() if key in possible}
    for site in sites:
        entries.setdefault(site.key, {**site.identity, "note": ""})
    _save(
        project.notes / SURVIVORS,
        sorted(entries.values(), key=lambda e: (e["file"], e["function"], e["line"])),
    )


def _save(path: Path, entries: list[dict[str, Any]]) -> None:
    bare = [{k: v for k, v in entry.items() if (k, v) != ("ordinal", 0)} for entry in entries]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(HEADS[path.name] + "\n" + tomli_w.dumps({"mutant": bare}))
