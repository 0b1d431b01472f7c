"""Starts `fedblocks run` many times and kills it; every run is a fork of this process, so that
torch loads once.

Reads nothing, writes one JSON object: what became of the runs. Arguments: folder, config file,
number of kills.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

from fedblocks.cli import main
from fedblocks.config import presets
from fedblocks.runs import run


def start(words: list[str], log: Path) -> int:
    """A child process that runs one command."""
    child = os.fork()
    if child == 0:
        with open(log, "a") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        code = 1
        try:
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


def killed(words: list[str], log: Path, seconds: float) -> int:
    """Run a command and kill it after some time; the exit code."""
    child = start(words, log)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    return wait(child)


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


def serve(root: Path, config: str, kills: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    # here, so that what torch loads late is there for all forks
    run.run(presets.read_config(config), root / "first")
    began = time.perf_counter()
    whole = wait(start(["run", config, "--out", str(root / "whole")], root / "whole.log"))
    length = time.perf_counter() - began
    instants = random.Random(7)
    actual = []
    for number in range(kills):
        folder, log = root / f"killed-{number}", root / f"killed-{number}.log"
        instant = instants.uniform(0.0, length)
        code = killed(["run", config, "--out", str(folder)], log, instant)
        actual.append(
            {"killed": code, "rounds": rounds_done(folder), "resumed": finish(folder, config, log)}
        )
    asked = interrupted(
        ["run", config, "--out", str(root / "asked")], root / "asked.log", root / "asked"
    )
    resumed = finish(root / "asked", config, root / "asked.log")
    return {
        "whole": whole,
        "killed": actual,
        "asked": asked,
        "asked_resumed": resumed,
        "seconds": length,
    }


if __name__ == "__main__":
    print(json.dumps(serve(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))))
