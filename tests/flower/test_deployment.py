"""A real SuperLink and real clients on loopback, with certificates and enrolled keys:
results, losses, hostility.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedblocks[flower]'")

from fedblocks.config.model import Config
from fedblocks.core.errors import Interrupted, UserError
from fedblocks.flower.client.host import start_client
from fedblocks.flower.client.standing import Standing
from fedblocks.flower.client.store import PersonalStore
from fedblocks.flower.hosts import launch, running
from fedblocks.flower.hosts.federation import check_job, job_for, new_run
from fedblocks.flower.hosts.process_group import ProcessGroup
from fedblocks.flower.hosts.server_host import stop_jobs
from fedblocks.flower.hosts.setup import set_up
from fedblocks.flower.keys.certificates import make_authority
from fedblocks.flower.keys.client_keys import make_client
from fedblocks.flower.server.jobs import all_jobs, load_job, unfinished_jobs
from fedblocks.flower.server.watching import watch
from fedblocks.runs.build import prepare
from fedblocks.runs.result import RunResult, load_run
from fedblocks.runs.run import REAL, run
from fedblocks.runs.storage.folder import RunFolder

pytestmark = pytest.mark.timeout(900)

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
    """One federation of two clients on this machine, for all tests of this file."""

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
            path, lambda done: print(done.line()), lambda note: print(note.text), self.tend
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


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    deployment = Deployed(tmp_path_factory.mktemp("deployment") / "base")
    with deployment.processes:
        deployment.start()
        assert living(deployment.base)  # or the look at the end would prove nothing
        yield deployment
    assert deployment.processes.living() == [] and living(deployment.base) == []


@pytest.fixture
def visitors(tmp_path: Path) -> Iterator[ProcessGroup]:
    """Processes of a client that does not belong to the federation."""
    with ProcessGroup(tmp_path / "logs", {}) as processes:
        yield processes
    assert processes.living() == [] and living(tmp_path) == []


def plot(deployed: Deployed, *attacks: str) -> None:
    (deployed.base / "two" / "attack").write_text(" ".join(attacks))


def rows(path: Path, query: str) -> list[dict[str, Any]]:
    with RunFolder.open(path) as folder:
        return folder.store.rows(query)


def until(true: Any, what: str, deployed: Deployed, seconds: float = 300) -> None:
    launch.until(true, seconds, deployed.tend, what)


# the others end so below, although a client (pfedmb) or the SuperLink (fedper) is killed
UNDISTURBED = ("fedmn", "modfl")


@pytest.fixture(scope="module")
def begun(deployed: Deployed, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs of two methods at the same time: each of them mostly waits for its messages."""
    plot(deployed)
    base = tmp_path_factory.mktemp("begun")
    return {name: deployed.submit(name, base / name) for name in UNDISTURBED}


@pytest.mark.parametrize("name", UNDISTURBED)
def test_a_real_federation_ends_as_a_simulated_one(
    name: str, deployed: Deployed, begun: dict[str, Path], tmp_path: Path
) -> None:
    same_end(
        deployed.finish(begun[name]),
        run(Config.of({**TABLE, **METHODS[name]}), tmp_path / "simulated"),
    )


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


# in each round another; the full disk comes first, for the client's log could not be written to
# either
HOSTILE = {
    "disk": "client-error",
    "nan": "not-finite",
    "extra": "names",
    "missing": "names",
    "shape": "shape",
    "weight": "bad-weight",
    "large": "too-large",
}


def test_a_hostile_client_is_refused_with_reasons_that_both_sides_log(
    deployed: Deployed, tmp_path: Path
) -> None:
    plot(deployed, *HOSTILE)
    changes = {"rounds": len(HOSTILE) + 1}
    path = deployed.submit("fedper", tmp_path / "run", changes, minimum=0.5)
    result = deployed.finish(path)
    plot(deployed)
    assert result.status == "finished" and result.rounds == len(HOSTILE) + 1
    refusals = rows(path, "SELECT round, client, reason FROM refusals ORDER BY round")
    assert [(row["round"], row["client"]) for row in refusals] == [
        (n + 1, 1) for n in range(len(HOSTILE))
    ]
    assert [row["reason"] for row in refusals] == list(HOSTILE.values())
    log = deployed.processes.log("two").read_text()
    assert [reason for reason in HOSTILE.values() if f"was not used: {reason}" not in log] == []
    assert all(
        value.isfinite().all()
        for block in result.state().server.values()
        for value in block.values()
    )


FEDAVG = {"method": {"name": "fedavg", **TRAINING}}


@pytest.mark.parametrize("bound", [None, 10**7], ids=["with the bound", "without the bound"])
def test_a_client_that_claims_ten_million_examples(
    bound: int | None, deployed: Deployed, tmp_path: Path
) -> None:
    """It sends ones: they become the model, unless claims are bounded by those of the others."""
    plot(deployed, "claim")
    choices = {"minimum": 0.5, "patience": 5.0, "largest_examples": bound}
    path = deployed.submit("fedper", tmp_path / "run", {"rounds": 1, **FEDAVG}, **choices)
    (block,) = deployed.finish(path).state().server.values()
    plot(deployed)
    model = torch.cat([tensor.flatten() for tensor in block.values()])
    is_taken_over = bool(torch.allclose(model, torch.ones_like(model), atol=1e-3))
    refusals = rows(path, "SELECT 1 FROM notes WHERE text LIKE '%too-large-claim: client 1%'")
    assert (is_taken_over, refusals != []) == ((False, True) if bound is None else (True, False))


@pytest.mark.parametrize("defended", [True, False])
def test_a_client_that_replays_an_answer_of_an_earlier_round(
    defended: bool, deployed: Deployed, tmp_path: Path
) -> None:
    """It is asked again and its update counts; without the second question the round waits for
    its deadline.
    """
    plot(deployed, "remember", "replay")
    deadline = 90.0 if defended else 10.0
    switch = deployed.server / "never-ask-again"
    if not defended:
        switch.touch()
    path = deployed.submit("fedper", tmp_path / "run", minimum=0.5, seconds=deadline)
    real = deployed.finish(path)
    plot(deployed)
    switch.unlink(missing_ok=True)
    ignored = rows(path, "SELECT 1 FROM notes WHERE text LIKE 'ignored: client 1, stale%'")
    refusals = [row["reason"] for row in rows(path, "SELECT reason FROM refusals")]
    seconds = rows(path, "SELECT seconds FROM rounds WHERE round = 2")[0]["seconds"]
    assert len(ignored) == 1
    assert (refusals, seconds >= deadline) == (([], False) if defended else (["no-answer"], True))
    if defended:
        same_end(real, run(Config.of({**TABLE, **METHODS["fedper"]}), tmp_path / "simulated"))


def test_a_client_of_another_version_is_refused(deployed: Deployed, tmp_path: Path) -> None:
    plot(deployed, "version")
    path = deployed.submit("fedper", tmp_path / "run", {"rounds": 1}, minimum=0.5, patience=20.0)
    deployed.finish(path)
    plot(deployed)
    notes = [row["text"] for row in rows(path, "SELECT text FROM notes")]
    assert any("a node was refused: version-mismatch" in note for note in notes), notes
    assert (
        "this client cannot take part: version-mismatch"
        in deployed.processes.log("two").read_text()
    )
    assert [row["reason"] for row in rows(path, "SELECT reason FROM refusals")] == ["unreachable"]


def test_a_client_that_is_killed_costs_no_more_than_the_deadline_and_comes_back_as_it_was(
    deployed: Deployed, tmp_path: Path
) -> None:
    plot(deployed, "behave", "sleep")
    (deployed.base / "two" / "sleeping").unlink(missing_ok=True)
    path = deployed.submit("pfedmb", tmp_path / "run", minimum=1.0, seconds=20.0, attempts=8)
    until(lambda: (deployed.base / "two" / "sleeping").exists(), "round 2 on the client", deployed)
    kept = fingerprint(deployed.personal(path, 1) / "round-000001")
    assert kept
    deployed.kill("two")
    killed = time.monotonic()
    abandoned = (
        "SELECT 1 FROM notes WHERE text LIKE 'round 2 was abandoned: 1 of at least 2 "
        "%client 1: no-answer%'"
    )
    until(lambda: rows(path, abandoned) != [], "the end of the round", deployed)
    # the deadline, and time to spare on a busy machine; Flower notices after 50 to 60 seconds
    assert time.monotonic() - killed < 45
    plot(deployed)
    start_client(deployed.processes, deployed.base / "two", "two", PROGRAM)
    real = deployed.finish(path)  # Flower lets it in again when it has noticed
    # nobody tried without it
    assert rows(path, "SELECT 1 FROM notes WHERE text LIKE 'round 2 was abandoned%()'") == []
    assert fingerprint(deployed.personal(path, 1) / "round-000001") == kept
    same_end(real, run(Config.of({**TABLE, **METHODS["pfedmb"]}), tmp_path / "simulated"))


def fingerprint(folder: Path) -> dict[str, str]:
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
    }


def test_a_run_survives_its_superlink(deployed: Deployed, tmp_path: Path) -> None:
    plot(deployed)
    # what a client is just being given is lost with the SuperLink: then the round is tried again
    choices = {"minimum": 1.0, "seconds": 60.0, "attempts": 8}
    path = deployed.submit("fedper", tmp_path / "run", {"rounds": 3}, **choices)
    until(lambda: rows(path, "SELECT 1 FROM rounds") != [], "round 1", deployed)
    deployed.processes.running["superlink"].kill()
    real = deployed.finish(path)
    assert real.rounds == 3
    same_end(
        real, run(Config.of({**TABLE, **METHODS["fedper"], "rounds": 3}), tmp_path / "simulated")
    )


@pytest.mark.soak
def test_a_run_and_new_clients_beside_it_end_though_the_server_is_killed(
    deployed: Deployed, tmp_path: Path, record_property: Callable[[str, str], None]
) -> None:
    plot(deployed)
    changes = {"rounds": 12, "data": {**DATA, "unseen": 0.5}}
    config = Config.of({**TABLE, **METHODS["fedper"], **changes})
    (unseen,) = prepare(config).experiment.unseen
    path = deployed.submit("fedper", tmp_path / "run", changes)
    until(lambda: rows(path, "SELECT 1 FROM rounds") != [], "round 1", deployed)
    choices = {"clients": (unseen,), "seconds": 240.0, "patience": 240.0}
    job = job_for(path, deployed.host.federation, kind="adapt", **choices)
    adapt = running.submit(deployed.server, job).name
    until(lambda: load_job(deployed.server, adapt).status == "running", "adapt", deployed)
    before = len(rows(path, "SELECT 1 FROM rounds"))
    deployed.crash()
    jobs = [r for r in all_jobs(deployed.server) if r.job.folder == str(path)]
    assert before < 12 and [record.status for record in jobs] == ["running", "running"]
    same_end(deployed.finish(path), run(config, tmp_path / "simulated"))
    until(lambda: load_job(deployed.server, adapt).is_over, "the end of adapt", deployed)
    ended = [load_job(deployed.server, record.name) for record in jobs]
    assert [(one.status, one.submissions) for one in ended] == [("finished", 2)] * 2
    notes = [row["text"] for row in rows(path, "SELECT text FROM notes")]
    assert any(note.startswith(f"client {unseen} has its model") for note in notes)
    record_property("figure", f"both jobs ended; the kill came after round {before} of 12")


@pytest.mark.soak
def test_jobs_go_on_side_by_side_are_taken_up_after_a_crash_and_stopped(
    deployed: Deployed, tmp_path: Path
) -> None:
    plot(deployed)
    path = deployed.submit("fedper", tmp_path / "run", {"rounds": 1000})
    until(lambda: rows(path, "SELECT 1 FROM rounds") != [], "round 1", deployed)
    job = job_for(
        path, deployed.host.federation, kind="adapt", clients=(1,), seconds=240.0, patience=240.0
    )
    adapt = running.submit(deployed.server, job).name
    until(lambda: load_job(deployed.server, adapt).is_over, "the end of adapt", deployed)
    assert load_job(deployed.server, adapt).status == "finished"
    (train,) = [
        record.name for record in unfinished_jobs(deployed.server) if record.job.folder == str(path)
    ]
    done = len(rows(path, "SELECT 1 FROM rounds"))
    deployed.crash()
    until(lambda: len(rows(path, "SELECT 1 FROM rounds")) > done + 1, "more rounds", deployed)
    assert load_job(deployed.server, train).submissions == 2
    assert [record.name for record in stop_jobs(deployed.server, path)] == [train]
    with pytest.raises(Interrupted, match="the run was stopped"):
        watch(
            path,
            lambda round_done: None,
            lambda note: None,
            lambda: check_job(deployed.server, train),
        )
    deployed.tend()
    assert (
        load_job(deployed.server, train).status == "stopped"
        and load_run(path).status == "interrupted"
    )
    # nothing such as "stopped: 0"
    assert rows(path, "SELECT text FROM notes WHERE level = 'warning'") == []


def test_an_unknown_key_is_refused(
    deployed: Deployed, visitors: ProcessGroup, tmp_path: Path
) -> None:
    make_client(visitor(deployed, tmp_path) / "client.key", tmp_path / "visitor.pub")
    assert "does not know the key of this client" in refused(visitors, tmp_path / "visitor").text


def test_a_server_with_another_authority_is_not_believed(
    deployed: Deployed, visitors: ProcessGroup, tmp_path: Path
) -> None:
    make_authority(visitor(deployed, tmp_path))
    assert (
        "not signed by the authority that this client knows"
        in refused(visitors, tmp_path / "visitor").text
    )


def refused(visitors: ProcessGroup, folder: Path) -> Standing:
    """What a client tells that is not let in; it goes on trying."""
    start_client(visitors, folder)
    launch.until(lambda: stands(folder, "trying"), 120, visitors.check, "the visitor's refusal")
    standing = Standing.read(folder)
    assert standing is not None and standing.fix
    return standing


def stands(folder: Path, state: str) -> bool:
    standing = Standing.read(folder)
    return standing is not None and standing.state == state


def test_nobody_is_answered_without_tls(deployed: Deployed) -> None:
    address = f"127.0.0.1:{deployed.host.inner_port}/health"
    assert launch.healthy(deployed.host, deployed.server)
    with pytest.raises(OSError):
        urllib.request.urlopen(f"http://{address}", timeout=30)


def visitor(deployed: Deployed, folder: Path) -> Path:
    """The folder of client two, in which a test puts something wrong."""
    return shutil.copytree(
        deployed.base / "two",
        folder / "visitor",
        ignore=shutil.ignore_patterns("state", "flower", "attack", "standing.json"),
    )


def test_a_job_of_no_name_is_refused(deployed: Deployed) -> None:
    with pytest.raises(UserError, match="not the name of a job"):
        load_job(deployed.server, "../server")
