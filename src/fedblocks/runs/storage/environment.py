"""What a run ran on, without host or user names; and the few things that it asks of the
operating system.
"""

from __future__ import annotations

import os
import platform
import sys
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from fedblocks.runs.storage.checkout import commit_around


def environment() -> dict[str, Any]:
    """Versions, hardware and command line, for `env.json`."""
    return {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": _cpu_name(),
        # the widest that torch uses: sums in another order differ in their last bits
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cpu_count": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        or ["cpu"],
        "cuda": torch.version.cuda,
        "versions": {
            name: _version(name) for name in ("fedblocks", "torch", "numpy", "safetensors")
        },
        "git": commit_around(Path.cwd()),
        "command": [_program(), *(without_home(argument) for argument in sys.argv[1:])],
    }


def _program() -> str:
    path = Path(sys.argv[0])
    is_ours = path.parts[-2:] == ("fedblocks", "__main__.py")  # `python -m fedblocks`
    return "fedblocks" if is_ours else path.name


def now() -> str:
    """The time in UTC, as ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def alive(pid: int) -> bool:
    """Whether a process runs, be it ours or not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # somebody else's, and alive
    return True


def start_time(pid: int) -> str:
    """When a process started, in clock ticks since boot: tells it from a later one with
    the same id ("" if unknown).
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def sync(path: Path) -> None:
    """Wait until a file, or the list of names in a folder, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@cache  # reading it takes as long as a round of a small run
def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def without_home(argument: str) -> str:
    home = os.path.expanduser("~").rstrip("/")  # the folder's name is usually the user's
    return argument.replace(home, "~") if len(home) > 1 else argument
