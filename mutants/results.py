"""Every verdict is kept at once, so that a call that was interrupted goes on where it ended."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Lock
from typing import Any

from mutants.sites import Site

Verdict = dict[str, Any]
SURVIVED = ("passed", "unreached")


class Results:
    """A file with one verdict a line; a verdict holds for one state of source and tests."""

    def __init__(self, path: Path, state: str) -> None:
        self.path, self.state, self.lock = path, state, Lock()

    def add(self, site: Site, budget: float, verdict: Verdict) -> None:
        row = {"state": self.state, "key": site.key, "budget": budget, **site.identity, **verdict}
        with self.lock, self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def _rows(self) -> list[Verdict]:
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return [json.loads(line) for line in lines]

    def latest(self) -> dict[str, Verdict]:
        """By key, the last verdict on each mutant."""
        return {row["key"]: row for row in self._rows() if row["state"] == self.state}

    def catchers(self) -> dict[str, str]:
        """By key, the test that failed last, in whatever state: it will most likely fail again."""
        return {row["key"]: row["test"] for row in self._rows() if row["verdict"] == "failed"}

    def settled(self, budget: float) -> set[str]:
        """Mutants that need not be planted again, unless more tests may be asked now."""
        return {key for key, row in self.latest().items() if not _cut_short(row, budget)}


def _cut_short(row: Verdict, budget: float) -> bool:
    """Whether a mutant survived fewer tests than reach it and may be asked now."""
    asked, every = row["tests"]
    return bool(row["verdict"] == "passed" and asked < every and row["budget"] < budget)
