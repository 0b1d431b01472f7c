"""Which tests reach a line, and in which order they are asked."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

from mutants.crew import Worker
from mutants.order import spread
from mutants.project import Project, digest
from mutants.sites import Site

RECORDING = 900.0  # seconds for a file of tests, whose lines are counted meanwhile
Lines = dict[str, int]  # by test, a bit for each line


class Reach:
    """What was recorded of every file of tests; only what has changed is recorded again."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.folder = project.cache / "reach"
        self.folder.mkdir(parents=True, exist_ok=True)

    def missing(self) -> list[str]:
        """Files of tests to record: new, changed, or with changed source beneath."""
        return [file for file in self.project.test_files() if not self._valid(file)]

    def _path(self, file: str) -> Path:
        return self.folder / f"{file.replace('/', '-')}.json"

    def _valid(self, file: str) -> bool:
        path = self._path(file)
        if not path.exists():
            return False
        noted = json.loads(path.read_text())
        return bool(noted["key"] == self._key(file, noted["reached"]))

    def _key(self, file: str, reached: Iterable[str]) -> str:
        root = self.project.root
        fixtures = [folder / "conftest.py" for folder in (root / file).parents]
        files = [root / file, *fixtures, *(self.project.source / name for name in sorted(reached))]
        return digest(f.read_bytes() for f in files if f.exists())

    def record(self, file: str, worker: Worker) -> None:
        """Run a file of tests in a worker and keep what it reaches."""
        tests = [test for test in worker.tests if test.partition("::")[0] == file]
        draft = worker.copy / "reached.json"
        draft.unlink(missing_ok=True)
        if tests:
            worker.ask(tests, dict.fromkeys(tests, RECORDING), RECORDING, record=str(draft))
        empty: dict[str, Any] = {"seconds": {}, "failed": tests, "reached": {}}
        noted = json.loads(draft.read_text()) if draft.exists() else empty
        source = f"{worker.copy / 'src' / self.project.package}/"
        noted["reached"] = {
            k.removeprefix(source): v for k, v in noted["reached"].items() if k.startswith(source)
        }
        noted["key"] = self._key(file, noted["reached"])
        self._path(file).write_text(json.dumps(noted))

    @cached_property
    def noted(self) -> list[dict[str, Any]]:
        paths = (self._path(file) for file in self.project.test_files())
        return [json.loads(path.read_text()) for path in paths if path.exists()]

    @cached_property
    def failed(self) -> set[str]:
        """Tests that fail without any mutant: they judge none."""
        return {test for noted in self.noted for test in noted["failed"]}

    @cached_property
    def seconds(self) -> dict[str, float]:
        return {
            t: s
            for noted in self.noted
            for t, s in noted["seconds"].items()
            if t not in self.failed
        }

    @cached_property
    def lines(self) -> dict[str, Lines]:
        """By source file: the lines that each test reaches."""
        every: dict[str, Lines] = defaultdict(dict)
        for noted in self.noted:
            for file, tests in noted["reached"].items():
                every[file].update(
                    {t: int(bits, 16) for t, bits in tests.items() if t in self.seconds}
                )
        return every

    @cached_property
    def breadth(self) -> Counter[str]:
        """How many lines each test reaches in all."""
        total: Counter[str] = Counter()
        for tests in self.lines.values():
            total.update({test: bits.bit_count() for test, bits in tests.items()})
        return total

    @cached_property
    def at_import(self) -> dict[str, int]:
        """By source file: the lines that run when the tests are collected."""
        path = self.folder / "imports.json"
        noted = json.loads(path.read_text()) if path.exists() else {}
        source = f"/src/{self.project.package}/"
        return {
            file.partition(source)[2]: sum(1 << line for line in lines)
            for file, lines in noted.items()
        }

    def runs_at_import(self, site: Site) -> bool:
        return site.at_import or bool(self.at_import.get(site.file, 0) & _mask(site))

    def tests(self, site: Site) -> list[str]:
        """Those that reach the statement; first the quick ones that do little else."""
        reached = self.lines.get(site.file, {})
        wanted = -1 if self.runs_at_import(site) else _mask(site)
        telling = [test for test, bits in reached.items() if bits & wanted]
        cost = {
            t: (self.seconds[t] + 0.02) * self.breadth[t] / reached[t].bit_count() for t in telling
        }
        return spread(sorted(telling, key=cost.__getitem__))


def _mask(site: Site) -> int:
    first, last = site.lines
    return ((1 << (last - first + 1)) - 1) << first
