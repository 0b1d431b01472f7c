"""Ctrl-C: the first lets the round end and stores it, the second stops at once; nothing
stored is lost either way.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from fedblocks.runs.progress import OnNote
from fedblocks.runs.storage.record import Note


class Stop:
    """Watches for Ctrl-C while a run is going on; in other threads than the main one it
    cannot, and does not.
    """

    def __init__(self, on_note: OnNote) -> None:
        self.asked = False
        self._on_note = on_note
        self._before: Any = None

    def __enter__(self) -> Stop:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self._on_note(Note("stopping after this round; Ctrl-C once more stops at once", "warning"))
