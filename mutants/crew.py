"""Workers as the main process sees them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from mutants.contained import contained

THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
)  # a fork of a process with more hangs


class Worker:
    """A process in a copy of the checkout, which has collected some files of tests."""

    def __init__(self, copy: Path, files: list[str]) -> None:
        self.copy, self.files = copy, files
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Worker:
        orders, self.orders = os.pipe()
        self.answers, answers = os.pipe()
        command = [sys.executable, "-m", "mutants.worker", str(orders), str(answers), *self.files]
        with (self.copy / "worker.log").open("ab") as log:
            self.process = subprocess.Popen(
                contained(command, self.copy), env=self._environment(), pass_fds=(orders, answers),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        os.close(orders)
        os.close(answers)
        self.reader = os.fdopen(self.answers)
        ready = self._answer()
        self.tests: list[str] = ready.get("tests", [])
        self.imports: list[int] = ready.get(
            "imports", []
        )  # marks that were set by collecting the tests
        return self

    def _environment(self) -> dict[str, str]:
        """One thread; sources, home and temporary files of the copy."""
        paths = os.pathsep.join((str(self.copy / "src"), str(self.copy)))
        places = {
            "HOME": str(self.copy / "home"),
            "TMPDIR": str(self.copy / "t"),
            "PYTHONPATH": paths,
        }
        for name in ("HOME", "TMPDIR"):
            Path(places[name]).mkdir(exist_ok=True)
        return {**os.environ, **dict.fromkeys(THREADS, "1"), **places, "PYTHONHASHSEED": "0"}

    def __exit__(self, *_: object) -> None:
        os.close(self.orders)
        self.reader.close()
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def _answer(self) -> dict[str, Any]:
        return dict(json.loads(self.reader.readline() or "{}"))

    def ask(
        self, tests: list[str], limits: dict[str, float], limit: float, **more: str
    ) -> dict[str, Any]:
        """How tests go, with a mutated `file` that was `old`; `record`: where to note lines."""
        if not self.tests:  # the mutant breaks the import
            return {"verdict": "died", "test": "", "seconds": 0.0}
        order = {
            "file": "",
            "old": "",
            "record": "",
            "tests": tests,
            "limits": limits,
            "limit": limit,
            **more,
        }
        os.write(self.orders, json.dumps(order).encode() + b"\n")
        answer = self._answer()
        if not answer:
            raise RuntimeError(f"a worker has ended by itself; see {self.copy / 'worker.log'}")
        return answer
