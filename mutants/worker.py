"""A process that has collected the tests, and forks a child for each mutant that it is sent."""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from mutants.children import end_orphans, waited
from mutants.contained import check_contained
from mutants.plant import functions_of, is_loaded, replace_code
from mutants.recording import Marks, Recorder

MEMORY = 8 << 30  # bytes of address space; a mutant may ask for absurd amounts


class Server:
    """Takes orders (one JSON object a line) instead of running what was collected."""

    def __init__(self, orders: int, answers: int) -> None:
        self.orders, self.answers = os.fdopen(orders), os.fdopen(answers, "w")
        self.functions: dict[str, list[FunctionType]] = {}
        self.items: dict[str, pytest.Item] = {}
        self.failed: dict[str, str] | None = None

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.items = {item.nodeid: item for item in session.items}
        self.functions = functions_of(Path.cwd() / "src")
        marks = sorted(Marks().take()) if Path("marks").exists() else []
        self._answer({"tests": list(self.items), "imports": marks})
        for line in self.orders:
            self._answer(self._in_child(json.loads(line)))
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.failed:
            late = "Timeout (>" in str(report.longrepr)
            self.failed = {"verdict": "timeout" if late else "failed", "test": report.nodeid}

    def _answer(self, answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=self.answers, flush=True)

    def _in_child(self, order: dict[str, Any]) -> dict[str, Any]:
        """What a forked child says of an order, or what became of the child."""
        scratch, began = Path(tempfile.mkdtemp(prefix="mutant-")), time.monotonic()
        child = os.fork()
        if child == 0:
            self._obey(order, scratch)
        ended = waited(child, order["limit"])
        end_orphans()
        said = scratch / "verdict.json"
        running = scratch / "running"
        answer = {
            "verdict": "died" if ended else "timeout",
            "test": running.read_text() if running.exists() else "",
        }
        if said.exists():
            answer = json.loads(said.read_text())
        shutil.rmtree(scratch, ignore_errors=True)
        return {**answer, "seconds": time.monotonic() - began}

    def _obey(self, order: dict[str, Any], scratch: Path) -> None:
        """In the child: plant, run, say how it went; never return."""
        os.setsid()
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        os.environ["TMPDIR"] = os.environ["PYTEST_DEBUG_TEMPROOT"] = tempfile.tempdir = str(scratch)
        verdict = {"verdict": "died", "test": order["tests"][0]}
        try:
            verdict = self._verdict(order, scratch)
        except BaseException:  # whatever a mutant throws, even what pytest lets through
            traceback.print_exc()
            verdict["test"] = (scratch / "running").read_text()
        finally:
            (scratch / "new.json").write_text(json.dumps(verdict))
            (scratch / "new.json").rename(scratch / "verdict.json")
            os._exit(0)

    def _verdict(self, order: dict[str, Any], scratch: Path) -> dict[str, Any]:
        if order["file"] and not self._planted(order):
            return {"verdict": "unplanted"}
        items = [self.items[name] for name in order["tests"]]
        recorder = Recorder(order["record"], items) if order["record"] else None
        for item, following in zip(items, [*items[1:], None]):
            (scratch / "running").write_text(item.nodeid)
            item.add_marker(pytest.mark.timeout(order["limits"].get(item.nodeid, order["limit"])))
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.failed and not recorder:
                return self.failed
        if recorder:
            recorder.save()
        return {"verdict": "passed", "test": ""}

    def _planted(self, order: dict[str, Any]) -> bool:
        """Whether the functions of this process have the bug, or will load it from its file."""
        file = order["file"]
        old, new = order["old"].encode(), Path(file).read_bytes()
        try:
            return replace_code(self.functions.get(file, []), file, old, new) > 0 or not is_loaded(
                file
            )
        except ValueError:  # other free variables: this function has to be defined anew
            return False


def main(orders: int, answers: int, files: list[str]) -> None:
    """Collect these files and serve."""
    check_contained()
    quiet = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header"]
    pytest.main([*quiet, *files], plugins=[Server(orders, answers)])


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
