"""A real SuperLink and two real clients on loopback, with certificates and enrolled keys."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from fedblocks.config.model import Config
from fedblocks.flower.client.host import start_client
from fedblocks.flower.client.standing import Standing
from fedblocks.flower.client.store import PersonalStore
from fedblocks.flower.hosts import launch, running
from fedblocks.flower.hosts.federation import job_for, new_run
from fedblocks.flower.hosts.process_group import ProcessGroup
from fedblocks.flower.hosts.setup import set_up
from fedblocks.flower.server.watching import watch
from fedblocks.runs.result import RunResult
from fedblocks.runs.run import REAL
from fedblocks.runs.storage.folder import RunFolder

# as honest as the other until it is told otherwise
PROGRAM = (str(Path(__file__).with_name("hostile_worker.py")),)
SERVER_APP = Path(__file__).with_name("serverapp_worker.py")
DATA = {"name": "digits", "clients": 2, "split": [0.6, 0.2, 0.2]}
TABLE: dict[str, Any] = {
    "rounds": 2,
    "threads": 1,
    "engine": "sequential",
    "device": "cpu",
    "data": DATA,
    "net": {"name": "mlp", "hidden": [16, 12]},
    "evaluation": {"every": 50},
}
TRAINING = {"lr": 0.1, "batch_size": 64}
METHODS: dict[str, dict[str, Any]] = {
    "fedper": {"method": {"name": "fedper", **TRAINING}},
    "fedmn": {
        "method": {"name": "fedmn", "modules": [2, 2], "widths": [16], "dropout": 0.0, **TRAINING}
    },
    "pfedmb": {"method": {"name": "pfedmb", "branches": 2, **TRAINING}},
    "modfl": {  # two architectures, whose last layers are the same
        "method": {
            "name": "modfl",
            "cohorts": "found",
            "operations": 2,
            "warmup": 1,
            "configuration": "a",
            **TRAINING,
        },
        "groups": {
            "b": {
                "clients": [1],
                "net": {"name": "mlp", "hidden": [8, 12]},
                "method": {"configuration": "b"},
            }
        },
    },
}


class Deployed:
    """One federation of two clients on this machine, for all tests of a file."""

    def __init__(self, base: Path) -> None:
        self.base, self.server = base, base / "server"
        port = launch.free_port()
        set_up(base, "127.0.0.1", {"one": [0], "two": [1]}, port, launch.free_port(), data=DATA)
        variables = {
            **launch.environment(self.server),
            launch.SERVER: str(self.server),
            "OMP_NUM_THREADS": "1",
        }
        variables["PATH"] = os.pathsep.join([str(base / "bin"), variables["PATH"]])
        (base / "bin").mkdir()
        script = base / "bin" / "flwr-serverapp"
        script.write_text(f'#!/bin/sh\nexec {sys.executable} {SERVER_APP} "$@"\n')
        script.chmod(0o700)
        self.processes = ProcessGroup(base / "logs", variables)

    def start(self) -> None:
        self.host = running.start_server(self.processes, self.server, print)
        start_client(self.processes, self.base / "one", "one")
        start_client(self.processes, self.base / "two", "two", PROGRAM)

    def submit(
        self, name: str, folder: Path, changes: dict[str, Any] | None = None, **choices: Any
    ) -> Path:
        path = new_run(Config.of({**TABLE, **METHODS[name], **(changes or {})}), folder, [])
        wanted = {"seconds": 240.0, "patience": 240.0, **choices}
        running.submit(self.server, job_for(path, self.host.federation, kind="train", **wanted))
        return path

    def tend(self) -> None:
        running.look_after(self.processes, self.server, print)

    def finish(self, path: Path) -> RunResult:
        return watch(
            path,
            lambda done: print(done.line()),
            lambda note: print(note.text),
            self.tend,
            "fedblocks federation run",
        )

    def personal(self, path: Path, client: int) -> Path:
        with RunFolder.open(path) as folder:
            name = folder.store.meta(REAL)
        node = "one" if client == 0 else "two"
        return (
            PersonalStore.of(
                self.base / node / "state", self.host.federation, str(name), client
            ).root
            / "personal"
        )

    def kill(self, *names: str) -> None:
        """Kill processes, and what they had started for messages."""
        for name in names:
            process = self.processes.running.pop(name)
            for pid in [process.pid, *descendants(process.pid)]:
                with suppress(ProcessLookupError):  # it ended by itself meanwhile
                    os.kill(pid, signal.SIGKILL)
            process.wait()

    def crash(self) -> None:
        """Kill the server and the apps that it had started, and start it again."""
        self.kill("superexec", "superlink")
        for name in ("superlink", "superexec"):
            command, more = self.processes.commands[name]
            self.processes.start(name, command, **more)
            launch.until(
                lambda: launch.healthy(self.host, self.server),
                60,
                self.processes.check,
                "the SuperLink",
            )


def descendants(pid: int) -> list[int]:
    try:
        children = [
            int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]
    except OSError:
        return []
    return children + [below for child in children for below in descendants(child)]


def living(base: Path) -> list[str]:
    """The processes that name a folder in their command or environment; not by the mark
    that they are ended by.
    """
    processes = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (entry / "cmdline").read_bytes()
            if str(base).encode() in command + (entry / "environ").read_bytes():
                processes.append(f"{entry.name} {command.decode()}")
    return processes


def plot(deployed: Deployed, *attacks: str) -> None:
    (deployed.base / "two" / "attack").write_text(" ".join(attacks))


def rows(path: Path, query: str) -> list[dict[str, Any]]:
    with RunFolder.open(path) as folder:
        return folder.store.rows(query)


def until(true: Any, what: str, deployed: Deployed, seconds: float = 300) -> None:
    launch.until(true, seconds, deployed.tend, what)


@contextmanager
def deployment(base: Path) -> Iterator[Deployed]:
    """A federation that runs, of which nothing is left afterwards."""
    deployed = Deployed(base)
    with deployed.processes:
        deployed.start()
        assert living(base)  # or the look at the end would prove nothing
        yield deployed
    assert deployed.processes.living() == [] and living(base) == []


def same_end(real: RunResult, simulated: RunResult) -> None:
    """The server's blocks, the personal models' scores and the counted bytes are those
    of the simulated run.
    """
    ours, theirs = real.state(), simulated.state()
    assert ours.round == theirs.round and ours.server.keys() == theirs.server.keys()
    for block, tensors in theirs.server.items():
        for key, value in tensors.items():
            torch.testing.assert_close(ours.server[block][key], value, rtol=0, atol=1e-6)
    assert real.accuracies() == pytest.approx(simulated.accuracies(), abs=1e-9)
    assert (real.bytes_down, real.bytes_up) == (simulated.bytes_down, simulated.bytes_up)


def stands(folder: Path, state: str) -> bool:
    standing = Standing.read(folder)
    return standing is not None and standing.state == state
