"""What was turned away, told seldom and in our own words: nobody can fill or forge the log by knocking."""

from __future__ import annotations

import time
from collections import Counter

EVERY = 10.0  # seconds between two lines
KINDS = 20  # different things that a line tells


class Refusals:
    """Counts, and the line that tells them."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._told = 0.0

    def count(self, what: str, address: str) -> None:
        """One more; `what` holds no byte that the other side chose, and `address` is the system's."""
        self._counts[f"{what} ({address})" if address else what] += 1
        if len(self._counts) > KINDS:
            self._counts = Counter({"of many kinds": self._counts.total()})
        if time.monotonic() - self._told > EVERY:
            told = ", ".join(f"{number} x {what}" for what, number in self._counts.most_common())
            print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} refused: {told}", flush=True)
            self._counts.clear()
            self._told = time.monotonic()
