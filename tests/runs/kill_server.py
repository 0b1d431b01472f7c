"""Starts `fedblocks run` many times and kills it; every run is a fork of this process, so that
torch loads once.

When a run is killed depends on what it has done (a checkpoint, and some processor time since),
never on the clock: a busy machine only makes it take longer.

Reads nothing, writes one JSON object: what became of the runs. Arguments: folder, config file,
number of kills, rounds between two checkpoints.
"""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fedblocks.cli import main
from fedblocks.runs.result import load_run


def start(words: list[str], log: Path, first: Callable[[], None] = lambda: None) -> int:
    """A child process that runs one command; it calls `first` before."""
    child = os.fork()
    if child == 0:
        with open(log, "a") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        code = 1
        try:
            first()
            main(words)
        except SystemExit as stop:
            code = int(stop.code or 0)
        finally:
            sys.stdout.flush()
            os._exit(code)
    return child


def wait(child: int) -> int:
    """The exit code; a negative number is a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def end_after(done: int, seconds: float) -> None:
    """Let this process be ended as by SIGKILL, so many seconds of its processor time after it
    has stored round `done`; 0: after it began.
    """

    def begin() -> None:
        # nobody handles the signal, so that the kernel ends the process wherever it is
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, seconds)

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "os.rename" and str(arguments[1]).endswith(f"checkpoints/round-{done:06d}"):
            begin()

    if done:
        sys.addaudithook(hear)
    else:
        begin()


def interrupted(words: list[str], log: Path, folder: Path) -> int:
    """Run a command and press Ctrl-C after the first checkpoint; the exit code."""
    child = start(words, log)
    while not rounds_done(folder):
        time.sleep(0.001)
    os.kill(child, signal.SIGINT)
    return wait(child)


def rounds_done(folder: Path) -> int:
    checkpoints = folder / "checkpoints"
    return (
        max((int(p.name[6:]) for p in checkpoints.glob("round-*")), default=0)
        if checkpoints.is_dir()
        else 0
    )


def finish(folder: Path, config: str, log: Path) -> int:
    """Resume; a run killed before its folder was whole is started again instead, as the
    message says.
    """
    if (folder / "config.toml").exists():
        return wait(start(["resume", str(folder)], log))
    return wait(start(["run", config, "--out", str(folder)], log))


def in_this_process(words: list[str], folder: Path) -> int:
    """Run a command here; the number of its rounds."""
    with redirect_stdout(sys.stderr), suppress(SystemExit):
        main(words)
    return load_run(folder).rounds


def serve(root: Path, config: str, kills: int, every: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    # here, so that what is loaded late is there for all forks
    rounds = in_this_process(["run", config, "--out", str(root / "first")], root / "first")
    whole = wait(start(["run", config, "--out", str(root / "whole")], root / "whole.log"))
    used = os.times().children_user + os.times().children_system
    between = used * every / rounds  # processor time from one checkpoint to the next, at most
    instants = random.Random(7)
    actual = []
    for number in range(kills):
        folder, log = root / f"killed-{number}", root / f"killed-{number}.log"
        done = number * every % rounds
        first = partial(end_after, done, max(1e-4, instants.uniform(0.0, between)))
        code = wait(start(["run", config, "--out", str(folder)], log, first))
        actual.append(
            {"killed": code, "rounds": rounds_done(folder), "resumed": finish(folder, config, log)}
        )
    asked = interrupted(
        ["run", config, "--out", str(root / "asked")], root / "asked.log", root / "asked"
    )
    resumed = finish(root / "asked", config, root / "asked.log")
    return {"whole": whole, "killed": actual, "asked": asked, "asked_resumed": resumed}


if __name__ == "__main__":
    numbers = map(int, sys.argv[3:5])
    print(json.dumps(serve(Path(sys.argv[1]), sys.argv[2], *numbers)))
