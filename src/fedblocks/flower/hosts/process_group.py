"""Processes that belong together: started with a log each, watched, and ended with
everything that they started.
"""

from __future__ import annotations

import ctypes
import os
import re
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType

from fedblocks.core.errors import UserError
from fedblocks.flower.keys.private_files import OTHERS, open_own, private_folder, write_private

# in the environment of every process of a group, and of all that these start
MARK = "FEDBLOCKS_PROCESS_GROUP"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
LOG = 4 * 2**20  # bytes of a log, and of what is kept of it when it begins anew
GRACE = 8.0  # seconds to end by oneself
_PR_SET_PDEATHSIG = 1


@dataclass(eq=False)
class ProcessGroup:
    """Processes with names; after a `with` block none of them is left, however it ended."""

    logs: Path
    environment: Mapping[str, str]  # besides this process's own
    mark: str = field(default_factory=lambda: secrets.token_hex(8))
    commands: dict[str, tuple[list[str], dict[str, str]]] = field(default_factory=dict)
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    restarts: int = 0
    # what is done now and then -> when it was done
    _last: dict[str, float] = field(default_factory=dict)

    def start(self, name: str, command: Sequence[str], **more: str) -> subprocess.Popen[bytes]:
        """Start a process; what it says goes to its log."""
        private_folder(self.logs)
        self.commands[name] = (list(command), more)
        environment = {**os.environ, **self.environment, **more, MARK: self.mark}
        descriptor = open_own(self.log(name), os.O_WRONLY | os.O_APPEND)
        with open(descriptor, "ab") as log:
            self.running[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
                preexec_fn=_end_with_parent,
                umask=OTHERS,
            )
        return self.running[name]

    def check(self) -> None:
        """Raise UserError if a process has ended."""
        for name, process in self.running.items():
            if (code := process.poll()) is not None:
                raise UserError(
                    f"{name} ended with code {code}: {self.last_words(name)}",
                    f"see {self.log(name)}",
                )

    def revive(self, most: int = 20) -> list[str]:
        """Start processes again that have ended, and return their names; more than
        `most` restarts are an error.
        """
        ended = [name for name, process in self.running.items() if process.poll() is not None]
        self.restarts += len(ended)
        if self.restarts > most:
            self.check()
        for name in ended:
            command, more = self.commands[name]
            self.start(name, command, **more)
        return ended

    def due(self, what: str, seconds: float) -> bool:
        """Whether `seconds` have passed since this last returned True for `what`."""
        before = self._last.setdefault(what, time.monotonic())
        if time.monotonic() - before < seconds:
            return False
        self._last[what] = time.monotonic()
        return True

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def trim_logs(self) -> None:
        """Begin logs anew that have grown large: whoever makes a process write much must not fill
        the disk.
        """
        for name in self.running:
            trim_log(self.log(name), LOG)

    def last_words(self, name: str) -> str:
        """Return the end of a log, in one line."""
        lines = self.log(name).read_text(errors="replace").splitlines()
        plain = [COLOUR.sub("", line).strip() for line in lines]
        return " | ".join(line for line in plain if line)[-600:] or "it said nothing"

    def stop(self) -> None:
        """End all processes, by SIGTERM and then by SIGKILL; those that they started
        are known by their mark.
        """
        for process in self.running.values():
            _signal(process.pid, signal.SIGTERM)
        end = time.monotonic() + GRACE
        while (left := self.living()) and time.monotonic() < end:
            self._reap()
            time.sleep(0.05)
        for pid in left:
            _signal(pid, signal.SIGKILL)
        while self.living():
            self._reap()
            time.sleep(0.02)
        self.running.clear()

    def living(self) -> list[int]:
        """Return the numbers of all living processes of the group; one that hides its environment
        is known if it was started here.
        """
        own = {process.pid for process in self.running.values() if process.poll() is None}
        return sorted({*find_marked(self.mark)} | own)

    def _reap(self) -> None:
        for process in self.running.values():
            process.poll()

    def __enter__(self) -> ProcessGroup:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.stop()


def trim_log(path: Path, most: int) -> None:
    """Move the end of a log to a second file, and cut the log where it is: its process goes on
    writing to the file that it has open.
    """
    try:
        with path.open("r+b") as log:
            size = log.seek(0, os.SEEK_END)
            if size <= most:
                return
            log.seek(size - most)
            end = log.read(most)
            log.truncate(0)
        write_private(path.with_name(f"{path.name}.1"), end)
    except OSError:
        return  # there is no log, or no room for a second one


def find_marked(mark: str) -> list[int]:
    """Return the numbers of this user's processes that carry a mark."""
    wanted = f"{MARK}={mark}".encode()
    pids = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                pids.append(int(entry.name))
        except OSError:
            continue  # ended meanwhile, or another user's
    return pids


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _end_with_parent() -> None:
    """In the child: get SIGTERM when the process that started it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@contextmanager
def ended_politely() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, so that processes that were started are ended first."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
