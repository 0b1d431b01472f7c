"""How many connections and bytes the gateway holds at a time, and whose; and how many bytes a
client may send in the long run.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fedblocks.flower.gateway.limits import Limits

Connection = asyncio.Task[Any]
HOUR = 3600.0  # seconds


class Connections:
    """Open connections: of strangers, who have shown no key yet, and of members, whom
    strangers cannot push out.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        # in the order in which they came -> the address
        self._strangers: dict[Connection, str] = {}
        self._members: dict[Connection, bytes] = {}

    def enter(self, connection: Connection, address: str) -> None:
        """Count a new connection; with too many strangers the oldest has to go."""
        same = [other for other, where in self._strangers.items() if where == address]
        if len(same) >= self.limits.strangers_each:
            self._drop(same[0])
        elif len(self._strangers) >= self.limits.strangers:
            self._drop(next(iter(self._strangers)))
        self._strangers[connection] = address
        connection.add_done_callback(self._leave)

    def admit(self, connection: Connection, key: bytes) -> bool:
        """Whether there is room for a connection on which a key was shown."""
        if self._members.get(connection) == key:
            return True
        others = Counter(self._members.values())
        if others.total() >= self.limits.connections or others[key] >= self.limits.connections_each:
            return False
        self._strangers.pop(connection, None)
        self._members[connection] = key
        return True

    def _drop(self, connection: Connection) -> None:
        self._strangers.pop(connection)
        connection.cancel()

    def _leave(self, connection: Connection) -> None:
        self._strangers.pop(connection, None)
        self._members.pop(connection, None)


class ByteFlow:
    """The bytes of requests that are under way; who asks for more waits until others have ended."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._bytes: Counter[bytes] = Counter()  # key -> bytes
        self._ended = asyncio.Event()

    @asynccontextmanager
    async def room(self, key: bytes, length: int) -> AsyncIterator[None]:
        """Hold room for one request; raise TimeoutError if there is none for long."""
        async with asyncio.timeout(self.limits.wait_seconds):
            while not self._fits(key, length):
                self._ended.clear()
                await self._ended.wait()
        self._bytes[key] += length
        try:
            yield
        finally:
            self._bytes[key] -= length
            self._bytes += Counter()  # forgets keys with nothing under way
            self._ended.set()

    def _fits(self, key: bytes, length: int) -> bool:
        """Whether a request fits; a single one always does, or a low limit would make
        it wait for ever.
        """
        total, own = self._bytes.total(), self._bytes[key]
        is_in_all = total == 0 or total + length <= self.limits.in_flight
        return is_in_all and (own == 0 or own + length <= self.limits.in_flight_each)


class Quota:
    """The bytes that each client may still send: a whole hour's at first, and more as time goes
    by.
    """

    def __init__(self, hour_each: int) -> None:
        self.hour_each = hour_each
        self._left: dict[bytes, tuple[float, float]] = {}  # key -> (when, bytes left then)

    def spend(self, key: bytes, length: int) -> bool:
        """Whether a client may send so many bytes now; if so, they are taken off."""
        left = self._left_of(key)
        if length > left:
            return False
        self._left = {k: v for k, v in self._left.items() if self._left_of(k) < self.hour_each}
        self._left[key] = (time.monotonic(), left - length)
        return True

    def _left_of(self, key: bytes) -> float:
        when, left = self._left.get(key, (0.0, self.hour_each))
        earned = (time.monotonic() - when) * self.hour_each / HOUR
        return min(self.hour_each, left + earned)
