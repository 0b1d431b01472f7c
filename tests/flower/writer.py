"""One side of a connection, for the tests beside this file."""

from __future__ import annotations


class Writer:
    """What is written to a connection."""

    def __init__(self, can_end: bool = True) -> None:
        self.came, self.ended, self.drains = b"", False, 0
        self.can_write_eof = lambda: can_end

    def write(self, content: bytes) -> None:
        assert not self.ended
        self.came += content

    def write_eof(self) -> None:
        self.ended = True

    async def drain(self) -> None:
        self.drains += 1
