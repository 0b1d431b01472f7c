"""A server that goes away while somebody watches a run of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedblocks.flower.hosts import launch
from fedblocks.flower.hosts.folders import ServerHost

LOOK = 10.0  # seconds between two looks
MISSES = 2  # looks in a row without an answer: one may be due to a busy machine


@dataclass(eq=False)
class ServerWatch:
    """Tells once that the server does not answer, and once that it does again."""

    host: ServerHost
    folder: Path
    tell: Callable[[str], None]
    _next: float = 0.0  # when to look again
    _misses: int = 0

    def look(self) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + LOOK
        if launch.healthy(self.host, self.folder):
            if self._misses >= MISSES:
                self.tell("the server answers again")
            self._misses = 0
            return
        self._misses += 1
        if self._misses == MISSES:
            start = f"fedblocks federation server {self.folder}"
            self.tell(f"the server does not answer; the run goes on when it is started: {start}")
