"""Processes that tests start, and leave behind when a mutant kills them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path


def waited(child: int, seconds: float) -> bool:
    """Wait for a child; False if it took longer than it may and was killed."""
    end = time.monotonic() + seconds
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > end:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return False
        time.sleep(0.005)
    return True


def end_orphans() -> None:
    """End what tests started and did not end; they are children of this process now."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    while children.exists() and (pids := children.read_text().split()):
        for pid in map(int, pids):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
