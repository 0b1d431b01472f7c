"""Processes that are forked from one that has imported everything: a new one takes two seconds of a
processor to import torch, and the tests start dozens.

`python warm.py SOCKET MODULE ...` is that one. For every order it forks a keeper, which forks the
process, writes its number and at last its exit code, and ends with it.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import IO

ORDER = 1 << 20  # bytes: the words of a command, and its environment
COMMANDS = ("torch", "pytest", "fedblocks.cli", "fedblocks.runs.run", "fedblocks.testing")


class WarmProcess:
    """What the tests use of `subprocess.Popen`, for the words after `python`: a script, `-m` and a
    module, or `-c` and code. `imports` names the modules, or the script, whose imports are warm.
    """

    def __init__(
        self,
        words: Sequence[str],
        env: Mapping[str, str],
        folder: Path | None = None,
        imports: tuple[str, ...] = COMMANDS,
    ) -> None:
        pipes = [os.pipe() for _ in range(3)]
        place = str(folder or Path.cwd())
        order = json.dumps({"words": words, "env": dict(env), "folder": place}).encode()
        socket.send_fds(_origin(imports), [order], [writing for _, writing in pipes])
        for _, writing in pipes:
            os.close(writing)
        self.stdout, self.stderr, self._news = (os.fdopen(reading) for reading, _ in pipes)
        self.pid = int(self._news.readline())
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        self._read([self._news], timeout)
        assert self.returncode is not None
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        output, errors, _ = self._read([self.stdout, self.stderr, self._news], timeout)
        return output, errors

    def _read(self, pipes: Sequence[IO[str]], timeout: float | None) -> list[str]:
        """Read pipes to their ends; the last of them brings the exit code."""
        texts = [""] * len(pipes)

        def read(place: int) -> None:
            texts[place] = "" if pipes[place].closed else pipes[place].read()

        readers = [Thread(target=read, args=[place], daemon=True) for place in range(len(pipes))]
        end = None if timeout is None else time.monotonic() + timeout
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(None if end is None else max(0.0, end - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired("a warm process", timeout or 0.0)
        if self.returncode is None:
            self.returncode = int(texts[-1])
        for pipe in pipes:
            pipe.close()
        return texts

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return  # it has ended

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run_warm(
    words: Sequence[str], folder: Path | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    """What `subprocess.run` of Python with these words would say."""
    process = WarmProcess(words, {**os.environ, "OMP_NUM_THREADS": "1", **env}, folder)
    output, errors = process.communicate(timeout=240)
    return subprocess.CompletedProcess(words, process.wait(), output, errors)


@cache
def _origin(imports: tuple[str, ...]) -> socket.socket:
    """The line to the process that is forked; it ends with ours."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, __file__, str(theirs.fileno()), *imports],
        pass_fds=[theirs.fileno()],
        env=env,
    )
    theirs.close()
    atexit.register(lambda: (ours.close(), process.wait()))
    return ours


def take_orders(line: socket.socket) -> None:
    """Fork for each order; what comes back from here is the process, or the end."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers are not waited for
    while True:
        order, pipes, _, _ = socket.recv_fds(line, ORDER, 3)
        if not order:
            return
        if os.fork() == 0:
            line.close()
            return _keep(json.loads(order), pipes)
        for pipe in pipes:
            os.close(pipe)


def _keep(order: dict[str, object], pipes: list[int]) -> None:
    """Fork the process, and say how it ended."""
    output, errors, news = pipes
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    process = os.fork()
    if process == 0:
        os.close(news)
        return _become(order, output, errors)
    for pipe in (output, errors):
        os.close(pipe)
    os.write(news, f"{process}\n".encode())
    _, status = os.waitpid(process, 0)
    os.write(news, str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _become(order: dict[str, object], output: int, errors: int) -> None:
    words, env, folder = order["words"], order["env"], order["folder"]
    assert isinstance(words, list) and isinstance(env, dict) and isinstance(folder, str)
    os.chdir(folder)
    for pipe, place in ((output, 1), (errors, 2)):
        os.dup2(pipe, place)
        os.close(pipe)
    os.environ.clear()
    os.environ.update(env)
    more = env.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:1] = [path for path in more if path and path not in sys.path]
    _run(words)


def _run(words: list[str]) -> None:
    """What Python does with the words after its name."""
    if words[0] == "-m":
        sys.argv, sys.path[:0] = [words[1], *words[2:]], [os.getcwd()]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv, sys.path[:0] = ["-c", *words[2:]], [""]
        sys.modules["__main__"] = program = ModuleType("__main__")
        exec(compile(words[1], "<string>", "exec"), program.__dict__)
    else:
        sys.argv, sys.path[:0] = words, [str(Path(words[0]).resolve().parent)]
        runpy.run_path(words[0], run_name="__main__")


def warm_up(imports: Sequence[str]) -> None:
    for name in imports:
        if name.endswith(".py"):
            sys.path.insert(0, str(Path(name).parent))
            runpy.run_path(name, run_name="warm")
            del sys.path[0]
        else:
            importlib.import_module(name)


if __name__ == "__main__":
    warm_up(sys.argv[2:])
    take_orders(socket.socket(fileno=int(sys.argv[1])))
