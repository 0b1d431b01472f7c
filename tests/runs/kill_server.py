"""Starts runs many times and kills them; every run is a fork of this process, so that torch loads
once.

When a run is killed depends on what it has done (a checkpoint, and some processor time since),
never on the clock: a busy machine only makes it take longer.

As a program it reads nothing and writes one JSON object: what became of the runs of each
configuration. Arguments: folder, number of kills, rounds between two checkpoints, configurations.
"""

import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from fedblocks.cli import main
from fedblocks.runs.result import load_run

Work = Callable[[], None]


def start(work: Work, log: Path, first: Work = lambda: None) -> int:
    """A child process that does one thing; it calls `first` before."""
    child = os.fork()
    if child == 0:
        with open(log, "a") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        code, began = 1, time.process_time()
        try:
            first()
            work()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            log.with_suffix(".seconds").write_text(str(time.process_time() - began))
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


class Runs(Protocol):
    """A way to run one configuration."""

    def prepare(self, folder: Path) -> None:
        """Make what is there before a run begins."""

    def begin(self, folder: Path) -> None:
        """Run it from its first round."""

    def go_on(self, folder: Path) -> None:
        """Run the rest of it after it was killed."""

    def stored(self, folder: Path) -> Path:
        """Where the run's own folder is."""


@dataclass(frozen=True)
class Commands:
    """`fedblocks run` and `fedblocks resume`."""

    config: str

    def prepare(self, folder: Path) -> None:
        """Nothing is there."""

    def begin(self, folder: Path) -> None:
        main(["run", self.config, "--out", str(folder)])

    def go_on(self, folder: Path) -> None:
        """A run killed before its folder was whole is started again, as the message says."""
        if (folder / "config.toml").exists():
            main(["resume", str(folder)])
        else:
            self.begin(folder)

    def stored(self, folder: Path) -> Path:
        return folder


def rounds_done(folder: Path) -> int:
    checkpoints = folder / "checkpoints"
    return (
        max((int(p.name[6:]) for p in checkpoints.glob("round-*")), default=0)
        if checkpoints.is_dir()
        else 0
    )


def interrupt(runs: Commands, log: Path, folder: Path) -> int:
    """Run and press Ctrl-C after the first checkpoint; the exit code."""
    child = start(partial(runs.begin, folder), log)
    while not rounds_done(folder):
        time.sleep(0.001)
    os.kill(child, signal.SIGINT)
    return wait(child)


def in_this_process(runs: Runs, folder: Path) -> int:
    """The number of rounds of a run here, so that what is loaded late is there for all forks."""
    runs.prepare(folder)
    with redirect_stdout(sys.stderr), suppress(SystemExit):
        runs.begin(folder)
    return load_run(runs.stored(folder)).rounds


def kill_often(runs: Runs, root: Path, kills: int, every: int) -> dict[str, Any]:
    """Run once to the end, and often until it is killed and then to the end."""
    rounds = in_this_process(runs, root / "first")
    log = root / "whole.log"
    runs.prepare(root / "whole")
    whole = wait(start(partial(runs.begin, root / "whole"), log))
    used = float(log.with_suffix(".seconds").read_text())
    between = used * every / rounds  # processor time from one checkpoint to the next, at most
    instants = random.Random(7)
    killed = []
    for number in range(kills):
        folder, log = root / f"killed-{number}", root / f"killed-{number}.log"
        kill(runs, folder, log, number * every % rounds, instants.uniform(0.0, between))
        reached = rounds_done(runs.stored(folder))
        resumed = wait(start(partial(runs.go_on, folder), log))
        killed.append({"rounds": reached, "resumed": resumed})
    return {"whole": whole, "killed": killed}


def kill(runs: Runs, folder: Path, log: Path, done: int, seconds: float) -> None:
    """Run until it is killed; if it ended before, then once more with half of the time."""
    runs.prepare(folder)
    first = partial(end_after, done, max(1e-4, seconds))
    if wait(start(partial(runs.begin, folder), log, first)) != -signal.SIGPROF:
        shutil.rmtree(folder)
        kill(runs, folder, log, done, seconds / 2)


def serve(root: Path, kills: int, every: int, configs: list[str]) -> dict[str, Any]:
    torch.set_num_threads(1)
    outcomes: dict[str, Any] = {}
    for config in configs:
        own = root / Path(config).stem
        own.mkdir()
        outcomes[own.name] = kill_often(Commands(config), own, kills, every)
    runs, folder, log = Commands(configs[0]), root / "asked", root / "asked.log"
    asked = interrupt(runs, log, folder)
    resumed = wait(start(partial(runs.go_on, folder), log))
    return {"asked": asked, "asked_resumed": resumed, "engines": outcomes}


if __name__ == "__main__":
    print(json.dumps(serve(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])))
