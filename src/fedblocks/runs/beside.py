"""A tracker in a thread of its own: whatever other people's code does, the run goes on."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

WAITING = 1000  # rounds that a tracker may be behind


class Tracker(Protocol):
    """Where numbers go."""

    def log(self, round: int, numbers: Mapping[str, float]) -> None:
        """The numbers of one round."""

    def close(self) -> None:
        """There are no more rounds."""


class Beside:
    """One tracker: opened with the first round, closed with the last, all in one thread."""

    def __init__(self, name: str, start: Callable[[], Tracker]) -> None:
        self.name = name
        self.remarks: deque[str] = deque()  # what is to be told of it
        self._start = start
        # None: there are no more
        self._rounds: queue.SimpleQueue[tuple[int, Mapping[str, float]] | None]
        self._rounds = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_behind = False

    def log(self, round: int, numbers: Mapping[str, float]) -> None:
        """Hand over a round; one for which there is no room is left out."""
        if self._thread is None:
            # a daemon, so that one that hangs does not keep the process alive
            self._thread = threading.Thread(target=self._live, name=self.name, daemon=True)
            self._thread.start()
        if not self._thread.is_alive():
            return
        if self._rounds.qsize() < WAITING:
            self._rounds.put((round, numbers))
        elif not self._is_behind:
            self.remarks.append(f"is {WAITING} rounds behind: it misses some from {round} on")
            self._is_behind = True

    def finish(self) -> None:
        """There are no more rounds than those handed over."""
        self._rounds.put(None)

    def wait(self, seconds: float) -> None:
        """Wait until the tracker is done, at most so long."""
        if self._thread is None:
            return
        self._thread.join(seconds)
        if self._thread.is_alive():
            self.remarks.append("was not done in time: its last rounds may be missing")

    def _live(self) -> None:
        try:
            tracker = self._start()
            while (item := self._rounds.get()) is not None:
                tracker.log(*item)
            tracker.close()
        except BaseException as error:  # SystemExit, too
            self.remarks.append(f"failed and is off: {type(error).__name__}: {error}")
