"""Which lines each test reaches, and how long it takes, noted while a file of tests runs."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import coverage
import pytest

OPTIONS = """[run]
source = {source}
data_file = {scratch}/reached
parallel = true
sigterm = true
core = ctrace
concurrency = thread,multiprocessing
context = ${{PYTEST_CURRENT_TEST-}}
disable_warnings = no-data-collected,module-not-measured,already-imported,module-not-imported
"""
SHARED = "shared by: "  # the context of a fixture that serves several tests


class ImportRecorder:
    """Notes the lines that run while tests are collected: bugs there need modules loaded anew."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.coverage = coverage.Coverage(
            data_file=None, config_file=False, source=[str(Path.cwd() / "src")]
        )
        self.coverage.set_option("run:core", "ctrace")
        self.coverage.start()

    def save(self) -> None:
        """{source file: [lines]}"""
        self.coverage.stop()
        data = self.coverage.get_data()
        self.path.write_text(
            json.dumps({file: sorted(data.lines(file) or []) for file in data.measured_files()})
        )


class Recorder:
    """Runs along with tests, in a child; other processes that they start are measured too."""

    def __init__(self, path: str, items: list[pytest.Item], scratch: Path) -> None:
        self.path, self.items, self.scratch = Path(path), items, scratch
        options = scratch / "coverage.ini"
        options.write_text(OPTIONS.format(source=Path.cwd() / "src", scratch=scratch))
        os.environ.pop("PYTEST_CURRENT_TEST", None)
        self.coverage = coverage.Coverage(config_file=str(options))
        os.environ["COVERAGE_PROCESS_START"] = str(options)
        self.seconds: dict[str, float] = defaultdict(float)
        self.failed: set[str] = set()
        self.context = ""
        items[0].config.pluginmanager.register(self)
        self.coverage.start()

    def _switch(self, context: str) -> None:
        self.context = context
        self.coverage.switch_context(context)

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
            for item in self._users(fixturedef.argname):
                self.seconds[item.nodeid] += time.perf_counter() - began

    def _users(self, fixture: str) -> list[pytest.Item]:
        return [item for item in self.items if fixture in getattr(item, "fixturenames", ())]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration
        if report.failed:
            self.failed.add(report.nodeid)

    def save(self) -> None:
        """{"seconds": {test: s}, "failed": [...], "reached": {source: {test: bits, in hex}}}."""
        self.coverage.stop()
        self.coverage.save()
        reached: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for file in self.scratch.glob("reached*"):
            for source, context, bits in _rows(file):
                for test in self._tests_of(context):
                    reached[source][test] |= int.from_bytes(bits, "little")
        lines = {
            source: {test: f"{bits:x}" for test, bits in tests.items()}
            for source, tests in reached.items()
        }
        noted = {"seconds": dict(self.seconds), "failed": sorted(self.failed), "reached": lines}
        self.path.write_text(json.dumps(noted))

    def _tests_of(self, context: str) -> list[str]:
        if SHARED in context:
            return [item.nodeid for item in self._users(context.split(SHARED)[1])]
        name = context.split("|")[-1]
        return [
            name.rsplit(" (", 1)[0]
            if name.endswith((" (setup)", " (call)", " (teardown)"))
            else name
        ]


def _rows(file: Path) -> list[tuple[str, str, bytes]]:
    """(source, context, bits of lines) of a data file, whose tables coverage documents."""
    every = (
        "select file.path, context.context, line_bits.numbits from line_bits"
        " join file on file.id = line_bits.file_id"
        " join context on context.id = line_bits.context_id"
    )
    try:
        with sqlite3.connect(file) as data:
            return data.execute(every).fetchall()
    except sqlite3.DatabaseError:  # of a process that was killed
        return []
