"""What every draw showed when it was first planted: tests written later do not change it."""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import tomli_w

from mutants.judge import CAUGHT
from mutants.project import Project

DRAWS = "draws.toml"
HEAD = """\
# Bugs caught of those planted, as each draw first came out. Those that are `latest` are added up on
# the page: set it to false where much has changed since.
"""


def load_draws(project: Project) -> list[dict[str, Any]]:
    """As they were planted: {seed, latest, note, caught: {packages: [number, of]}}."""
    path = _path(project)
    return list(tomllib.loads(path.read_text())["draw"]) if path.exists() else []


def add_draw(project: Project, seed: int, rows: list[dict[str, Any]]) -> None:
    """Keep what a draw showed, unless this seed was drawn from the same packages before."""
    planted = [row for row in rows if row["drawn"]]
    of = Counter(str(project.stratum(row["file"])) for row in planted)
    good = Counter(str(project.stratum(r["file"])) for r in planted if r["verdict"] in CAUGHT)
    caught = {name: [good[name], of[name]] for name in project.strata if of[name]}
    draws = load_draws(project)
    known = {name for draw in draws if draw["seed"] == seed for name in draw["caught"]}
    if caught.keys() - known:
        new = {name: pair for name, pair in caught.items() if name not in known}
        draws.append({"seed": seed, "latest": True, "note": "", "caught": new})
        _path(project).parent.mkdir(parents=True, exist_ok=True)
        _path(project).write_text(HEAD + "\n" + tomli_w.dumps({"draw": draws}))


def _path(project: Project) -> Path:
    return project.notes / DRAWS
