"""A server that goes away while somebody watches a run of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedblocks.core.errors import UserError
from fedblocks.flower.hosts import launch, running
from fedblocks.flower.hosts.expiry import ExpiredError
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
            self.tell(self._reason())

    def _reason(self) -> str:
        try:
            running.check_running(self.folder)
        except ExpiredError as error:
            return f"{error.message}; the run goes on then; {error.fix}"
        except UserError:
            pass
        start = f"fedblocks federation server {self.folder}"
        return f"the server does not answer; the run goes on when it is started: {start}"
