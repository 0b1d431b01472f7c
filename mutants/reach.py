"""Which tests reach a statement, and in which order they are asked."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

from mutants.crew import Worker
from mutants.marks import Place
from mutants.near import IMPORTS as OWN
from mutants.near import MENTIONS, STRANGER, Nearness, names_of
from mutants.order import affordable, spread
from mutants.project import Project, digest
from mutants.sites import Site

RECORDING = 900.0  # seconds that a file of tests may take
LATER = 5.0  # seconds of tests that reach a line which runs when tests are collected, too
FIRST = 2.0  # seconds of tests that import what is changed: all their cases come first
IMPORTS = "imports.json"
Lines = dict[str, int]  # by test, a bit for each line where a statement begins


class Reach:
    """What was recorded of every file of tests; only what has changed is recorded again."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.folder = project.cache / "reach"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.nearness = Nearness(project)

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

    def record(self, file: str, worker: Worker, places: list[Place]) -> None:
        """Run a file of tests in a worker whose copy is marked, and keep what it reaches."""
        tests = [test for test in worker.tests if test.partition("::")[0] == file]
        draft = worker.copy / "reached.json"
        draft.unlink(missing_ok=True)
        if tests:
            worker.ask(tests, dict.fromkeys(tests, RECORDING), RECORDING, record=str(draft))
        empty: dict[str, Any] = {"seconds": {}, "shared": {}, "failed": tests, "reached": {}}
        noted = json.loads(draft.read_text()) if draft.exists() else empty
        reached: dict[str, dict[str, str]] = defaultdict(dict)
        for test, marks in noted["reached"].items():
            for name, bits in _by_file(places[mark] for mark in marks).items():
                reached[name][test] = f"{bits:x}"
        noted |= {"reached": reached, "key": self._key(file, reached)}
        self._path(file).write_text(json.dumps(noted))

    def record_imports(self, worker: Worker, places: list[Place]) -> None:
        """Keep what collecting the tests runs: bugs there need modules that are loaded anew."""
        bits = _by_file(places[mark] for mark in worker.imports)
        (self.folder / IMPORTS).write_text(json.dumps({file: f"{b:x}" for file, b in bits.items()}))

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
    def shared(self) -> dict[str, float]:
        """Seconds of the fixtures that a test has in common with others of its file."""
        return {test: s for noted in self.noted for test, s in noted["shared"].items()}

    def cost(self, test: str) -> float:
        """Seconds that a test takes alone."""
        return self.seconds[test] + self.shared.get(test, 0.0)

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
        noted = json.loads((self.folder / IMPORTS).read_text())
        return {file: int(bits, 16) for file, bits in noted.items()}

    def runs_at_import(self, site: Site) -> bool:
        return site.at_import or bool(self.at_import.get(site.file, 0) & 1 << site.lines[0])

    def tests(self, site: Site) -> list[str]:
        """Those that reach the statement; first the quick and near ones that do little else. What
        runs when tests are collected may be felt by others, too: they come after.
        """
        reaching = [] if site.at_import else self._reaching(site)
        if not self.runs_at_import(site):
            return reaching
        others = self._of_constants(site.file, self.lines.get(site.file, {}), names_of(site))
        return list(dict.fromkeys([*affordable(reaching, self.cost, LATER), *others]))

    def _reaching(self, site: Site) -> list[str]:
        reached, names = self.lines.get(site.file, {}), names_of(site)
        telling = [test for test, bits in reached.items() if bits & 1 << site.lines[0]]
        near = {test: self.nearness.of(test, site.file, names) for test in telling}
        share = {test: reached[test].bit_count() / self.breadth[test] for test in telling}
        ranked = sorted(telling, key=lambda t: (self.cost(t) + 0.02) / near[t] / share[t])
        own = [test for test in ranked if near[test] >= OWN]
        return spread(ranked, first=affordable(own, self.cost, FIRST))

    def _of_constants(self, file: str, reached: Lines, names: frozenset[str]) -> list[str]:
        """Tests of what runs when a file is imported: reaching its functions says little, so that
        all files of tests have a turn, near ones first; also those that only import it.
        """
        near = {test: self.nearness.of(test, file, names) for test in self.seconds}
        telling = [test for test in near if test in reached or near[test] > STRANGER]
        worth = spread(sorted(telling, key=lambda test: (self.cost(test) + 0.02) / near[test]))
        own = [test for test in worth if near[test] == MENTIONS]
        return spread(worth, "::", first=affordable(own, self.cost, FIRST))


def _by_file(places: Iterable[Place]) -> dict[str, int]:
    """A bit for each line, file by file."""
    bits: dict[str, int] = defaultdict(int)
    for file, line in places:
        bits[file] |= 1 << line
    return bits
