"""Keys that are used in two places at once: a client's folder was copied, or its key was stolen.

Every process of a client sends a number of its own with its requests. One that comes again after
another one came has not been replaced by it: both are alive.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fedblocks.flower.gateway.members import Headers
from fedblocks.flower.keys.shared_keys import SharedKey

PROCESS = b"fedblocks-process"
NUMBER = re.compile(rb"[0-9a-f]{16}")
ALIVE = 90.0  # seconds; a client is heard of every 30, however busy it is
EVERY = 10.0  # seconds between two reports
MOST = 16  # processes of one key that are told apart

Report = Callable[[Mapping[str, SharedKey]], None]


@dataclass(frozen=True)
class _Use:
    address: str
    last: float  # when it was heard of


class KeyUses:
    """The processes that use each key, and a report of keys that are used in several places."""

    def __init__(self, report: Report, clock: Callable[[], float] = time.monotonic) -> None:
        self.report = report
        self.clock = clock
        self._uses: dict[str, dict[bytes, _Use]] = {}  # name of a key -> process, the latest last
        self._shared: dict[str, SharedKey] = {}
        self._reported = -EVERY

    def note(self, name: str, headers: Headers, address: str) -> None:
        """Note a request by a key; report, now and then, if other processes use it too."""
        number = headers.get(PROCESS, b"")
        process = number if NUMBER.fullmatch(number) else address.encode()
        now = self.clock()
        others = {p: use for p, use in self._uses.get(name, {}).items() if now - use.last < ALIVE}
        own = others.pop(process, None)
        rivals = [use for use in others.values() if own is not None and use.last >= own.last]
        self._uses[name] = dict([*others.items(), (process, _Use(address, now))][-MOST:])
        if rivals:
            addresses = sorted({address, *(use.address for use in rivals)})
            self._shared[name] = SharedKey(len(rivals) + 1, addresses, time.time())
            self._report_seldom(now)

    def _report_seldom(self, now: float) -> None:
        if now - self._reported < EVERY:
            return
        self._reported = now
        recent = time.time() - ALIVE
        self._shared = {name: key for name, key in self._shared.items() if key.when > recent}
        self.report(self._shared)
