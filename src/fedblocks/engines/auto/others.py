"""How many cores other programs keep busy while something is measured."""

from __future__ import annotations

import os
import time
from pathlib import Path

STAT = Path("/proc/stat")  # its first line: what all cores did, in ticks
IDLE = (3, 4)  # places in it: nothing to do, and waiting for a disk
GUEST = 8  # from here on it counts again what was counted before


class Others:
    """Counts from the moment that it is made."""

    def __init__(self) -> None:
        self._began = time.perf_counter(), _seconds_of_all(), _own_seconds()

    def cores(self) -> float:
        """In the mean so far; where the system does not say, by the load of the last minute, of
        which we are one. Children of ours count as others until they have ended.
        """
        now = time.perf_counter(), _seconds_of_all(), _own_seconds()
        took, every, own = (b - a for a, b in zip(self._began, now, strict=True))
        if every <= 0:
            return os.getloadavg()[0] - 1 if hasattr(os, "getloadavg") else 0.0
        return (every - own) / max(took, 1e-9)


def _seconds_of_all() -> float:
    try:
        ticks = [int(word) for word in STAT.read_text().partition("\n")[0].split()[1:]][:GUEST]
    except (OSError, ValueError):
        return 0.0
    busy = sum(ticks) - sum(ticks[place] for place in IDLE)
    return busy / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    return sum(os.times()[:4])
