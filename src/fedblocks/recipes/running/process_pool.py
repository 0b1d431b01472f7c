"""Worker processes side by side; on a CPU each has one thread, which is faster than one
process with several.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from queue import SimpleQueue
from types import MappingProxyType

from fedblocks.recipes.running.gpu_share import environment_of
from fedblocks.recipes.running.worker import STOPPED, Answer, Batch

GRACE = 15.0  # seconds that a worker may take to end its round when the time is up
# Signals that come from outside: a machine without memory, or somebody who ends processes. The
# others are crashes of what the worker does.
FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGXCPU)
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class WorkerProcess:
    """One process, started with its first job and again after a crash."""

    def __init__(self, environment: Mapping[str, str] = MappingProxyType({})) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._environment = environment

    def work(self, batch: Batch) -> list[Answer]:
        """The answers to some jobs; a process that dies or overruns its time is an answer, too."""
        process = self._running_process()
        overrun = threading.Event()

        def end() -> None:
            overrun.set()
            process.kill()

        seconds = batch["seconds"]
        late = threading.Timer(threading.TIMEOUT_MAX if seconds is None else seconds + GRACE, end)
        late.daemon = True
        late.start()
        line = _ask(process, json.dumps(batch))
        late.cancel()
        if line:
            answers: list[Answer] = json.loads(line)
            return answers
        code = process.wait()
        self.close()
        return [STOPPED if overrun.is_set() else _last_word(code) for _ in batch["jobs"]]

    def close(self) -> None:
        """End the process; what it has stored is whole."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _running_process(self) -> subprocess.Popen[str]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "fedblocks.recipes.running.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env={**os.environ, **ONE_THREAD, **self._environment},
                # Ctrl-C is for the process that reads it; that one ends the workers
                start_new_session=True,
            )
        return self._process


class ProcessPool:
    """A few workers; a batch waits until one of them is free."""

    def __init__(self, size: int) -> None:
        self._workers = [WorkerProcess(environment_of(n, size)) for n in range(size)]
        self._free: SimpleQueue[WorkerProcess] = SimpleQueue()
        for worker in self._workers:
            self._free.put(worker)

    def work(self, batch: Batch) -> list[Answer]:
        """The answers of the next free worker."""
        worker = self._free.get()
        try:
            return worker.work(batch)
        finally:
            self._free.put(worker)

    def close(self) -> None:
        """End all processes."""
        for worker in self._workers:
            worker.close()


def _last_word(code: int) -> Answer:
    """What the end of a process means: killed from outside, or a failure of what it did."""
    if -code in FROM_OUTSIDE:
        return {"killed": -code}
    return {
        "error": f"the worker process ended with code {code}",
        "fix": "is there enough memory? Try --jobs 1",
    }


def _ask(process: subprocess.Popen[str], text: str) -> str:
    """The next line of a process, empty if it has died, be it in the middle of a line."""
    assert process.stdin is not None and process.stdout is not None  # as it was started
    try:
        process.stdin.write(text + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        return line if line.endswith("\n") else ""
    except OSError:
        return ""
