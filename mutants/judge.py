"""One bug planted, the tests asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mutants.crew import Worker
from mutants.order import within_budget
from mutants.plant import Planted
from mutants.project import Project
from mutants.reach import Reach
from mutants.sites import Site

PATIENCE = 10.0  # seconds a test may take beyond ten times what it took before
CAUGHT = ("failed", "timeout", "died")
UNREACHED = {"verdict": "unreached", "test": "", "seconds": 0.0, "fresh": False}


@dataclass
class Judge:
    """A copy of the checkout with a worker that has collected every test."""

    project: Project
    reach: Reach
    worker: Worker
    budget: float  # seconds of tests for a mutant
    sound: set[str] = field(
        default_factory=set
    )  # tests that were seen to pass alone, without a mutant
    unsound: set[str] = field(default_factory=set)

    @property
    def copy(self) -> Path:
        return self.worker.copy

    def verdict(self, site: Site, catcher: str = "") -> dict[str, Any]:
        """Its "verdict" is "passed", "unreached" (no test runs the line) or one of CAUGHT.

        `catcher` is the test that caught it in an earlier state: it is asked alone, first.
        """
        every = self.reach.tests(site)
        if catcher in every and catcher not in self.unsound:
            answer = self._planted(site, [catcher])
            if answer["verdict"] in CAUGHT and self._is_sound(catcher):
                return {**answer, "tests": [1, len(every)]}
        while True:
            useful = [test for test in every if test not in self.unsound]
            tests = within_budget(useful, self.reach.seconds, self.reach.shared, self.budget)
            if not tests:
                return {**UNREACHED, "tests": [0, len(every)]}
            answer = self._planted(site, tests)
            if answer["verdict"] not in CAUGHT or self._is_sound(answer["test"]):
                return {**answer, "tests": [len(tests), len(every)]}

    def _planted(self, site: Site, tests: list[str]) -> dict[str, Any]:
        file = self.copy / "src" / self.project.package / site.file
        old = file.read_text()
        with Planted(file, site):
            if not self.reach.runs_at_import(site):
                answer = self._ask(self.worker, tests, file=str(file), old=old)
                if answer["verdict"] != "unplanted":
                    return {**answer, "fresh": False}
            with Worker(self.copy, sorted({test.partition("::")[0] for test in tests})) as fresh:
                return {**self._ask(fresh, tests), "fresh": True}

    def _is_sound(self, test: str) -> bool:
        """Whether a test passes alone without a mutant; one that does not is never asked again."""
        if test in self.reach.seconds and test not in self.sound | self.unsound:
            passed = self._ask(self.worker, [test])["verdict"] == "passed"
            (self.sound if passed else self.unsound).add(test)
        return test not in self.unsound

    def _ask(self, worker: Worker, tests: list[str], **more: str) -> dict[str, Any]:
        limits = {test: PATIENCE + 10 * self.reach.cost(test) for test in tests}
        whole = 3 * PATIENCE + 5 * sum(map(self.reach.cost, tests))
        return worker.ask(tests, limits, whole, **more)
