"""Which statements each test reaches, and how long it takes, noted while a file of tests runs."""

from __future__ import annotations

import json
import mmap
import time
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

SHARED = "shared by: "  # before the name of a fixture that serves several tests


class Marks:
    """The bytes that marked code sets; see marks.py."""

    def __init__(self) -> None:
        with Path("marks").open("r+b") as file:
            self.bytes = mmap.mmap(file.fileno(), 0)

    def take(self) -> set[int]:
        """The marks that were set since the last call."""
        noted = self.bytes[:]
        self.bytes[:] = bytes(len(noted))
        place, places = noted.find(1), set()
        while place >= 0:
            places.add(place)
            place = noted.find(1, place + 1)
        return places


class Recorder:
    """Runs along with tests, in a child; what they reach in other processes is noted too."""

    def __init__(self, path: str, items: list[pytest.Item]) -> None:
        self.path, self.items, self.marks = Path(path), items, Marks()
        self.seconds: dict[str, float] = defaultdict(float)  # without fixtures that are shared
        self.shared: dict[str, float] = defaultdict(float)  # those fixtures
        self.reached: dict[str, set[int]] = defaultdict(set)
        self.failed: set[str] = set()
        self.context = ""
        items[0].config.pluginmanager.register(self)
        self.marks.take()

    def _switch(self, context: str) -> None:
        """What was reached until now belongs to the context before."""
        self.reached[self.context] |= self.marks.take()
        self.context = context

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self._switch(item.nodeid)
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
        """What a fixture of several tests reaches, each of them reaches and may wait for."""
        if fixturedef.scope == "function":
            return (yield)
        outer, began = self.context, time.perf_counter()
        self._switch(f"{SHARED}{fixturedef.argname}")
        try:
            return (yield)
        finally:
            self._switch(outer)
            self._share(time.perf_counter() - began, fixturedef.argname)

    def _share(self, seconds: float, fixture: str) -> None:
        """The time of a fixture is that of all its tests, and not of the one that asked first."""
        if SHARED not in self.context:
            self.seconds[self.context] -= seconds
        for item in self._users(fixture):
            self.shared[item.nodeid] += seconds

    def _users(self, fixture: str) -> list[pytest.Item]:
        return [item for item in self.items if fixture in getattr(item, "fixturenames", ())]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration
        if report.failed:
            self.failed.add(report.nodeid)

    def save(self) -> None:
        """{"seconds", "shared": {test: s}, "failed": [tests], "reached": {test: [marks]}}."""
        self._switch("")
        reached = {item.nodeid: set(self.reached[item.nodeid]) for item in self.items}
        for context, marks in self.reached.items():
            for item in self._users(context.removeprefix(SHARED)) if SHARED in context else ():
                reached[item.nodeid] |= marks
        lists = {test: sorted(marks) for test, marks in reached.items()}
        noted = {
            "seconds": self.seconds,
            "shared": self.shared,
            "failed": sorted(self.failed),
            "reached": lists,
        }
        self.path.write_text(json.dumps(noted))
