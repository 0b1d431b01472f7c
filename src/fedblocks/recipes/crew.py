"""Worker processes side by side; on a CPU each has one thread, which is faster than one process with several."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from queue import SimpleQueue
from typing import Any

from fedblocks.recipes.worker import Answer

GRACE = 15.0  # seconds that a worker may take to end its round when the time is up
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class Worker:
    """One process, started with its first job and again after a crash."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def work(self, job: dict[str, Any]) -> Answer:
        """The answer to one job; a process that dies or overruns its time is an answer, too."""
        process, overrun = self._started(), threading.Event()

        def end() -> None:
            overrun.set()
            process.kill()

        late = threading.Timer(job["seconds"] + GRACE if job["seconds"] is not None else threading.TIMEOUT_MAX, end)
        late.daemon = True
        late.start()
        line = _asked(process, json.dumps(job))
        late.cancel()
        if line:
            found: Answer = json.loads(line)
            return found
        code = process.wait()
        self.close()
        if overrun.is_set():
            return {"stopped": True}
        return {"error": f"the worker process ended with code {code}", "fix": "is there enough memory? Try --jobs 1"}

    def close(self) -> None:
        """End the process; what it has stored is whole."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "fedblocks.recipes.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env={**os.environ, **ONE_THREAD},
                start_new_session=True,  # Ctrl-C is for the process that reads it; that one ends the workers
            )
        return self._process


class Crew:
    """A few workers; a job waits until one of them is free."""

    def __init__(self, size: int) -> None:
        self._workers = [Worker() for _ in range(size)]
        self._free: SimpleQueue[Worker] = SimpleQueue()
        for worker in self._workers:
            self._free.put(worker)

    def work(self, job: dict[str, Any]) -> Answer:
        """The answer of the next free worker."""
        worker = self._free.get()
        try:
            return worker.work(job)
        finally:
            self._free.put(worker)

    def close(self) -> None:
        """End all processes."""
        for worker in self._workers:
            worker.close()


def _asked(process: subprocess.Popen[str], text: str) -> str:
    """The next line of a process, empty if it has died."""
    assert process.stdin is not None and process.stdout is not None  # as it was started
    try:
        process.stdin.write(text + "\n")
        process.stdin.flush()
        return process.stdout.readline()
    except OSError:
        return ""
