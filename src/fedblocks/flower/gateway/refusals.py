"""A log of refused requests, seldom and in our own words, so that nobody outside can
fill or forge it.
"""

from __future__ import annotations

import time
from collections import Counter

EVERY = 10.0  # seconds between two lines
KINDS = 20  # different refusals in one line


class Refusals:
    """Counts of refusals, and the line that reports them."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._printed = 0.0

    def count(self, what: str, address: str) -> None:
        """Count one refusal; `what` holds no byte that the other side chose, and
        `address` is the system's.
        """
        self._counts[f"{what} ({address})" if address else what] += 1
        if len(self._counts) > KINDS:
            self._counts = Counter({"of many kinds": self._counts.total()})
        if time.monotonic() - self._printed > EVERY:
            summary = ", ".join(f"{number} x {what}" for what, number in self._counts.most_common())
            print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} refused: {summary}", flush=True)
            self._counts.clear()
            self._printed = time.monotonic()
