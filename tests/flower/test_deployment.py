"""A real federation of real processes: results, losses, restarts."""

from __future__ import annotations

import hashlib
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedblocks[flower]'")

from fedblocks.config.model import Config
from fedblocks.core.errors import Interrupted, UserError
from fedblocks.flower.client.host import start_client
from fedblocks.flower.hosts import running
from fedblocks.flower.hosts.federation import check_job, job_for
from fedblocks.flower.hosts.server_host import stop_jobs
from fedblocks.flower.server.jobs import all_jobs, load_job, unfinished_jobs
from fedblocks.flower.server.watching import watch
from fedblocks.runs.build import prepare
from fedblocks.runs.result import load_run
from fedblocks.runs.run import run

from .deployments import (
    DATA,
    METHODS,
    PROGRAM,
    TABLE,
    Deployed,
    deployment,
    living,
    plot,
    rows,
    same_end,
    until,
)

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    with deployment(tmp_path_factory.mktemp("deployment") / "base") as federation:
        yield federation


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


def test_no_secret_is_a_word_of_a_command(deployed: Deployed, tmp_path: Path) -> None:
    path = deployed.submit("fedper", tmp_path / "run")
    commands: set[str] = set()

    def is_trained() -> bool:
        commands.update(living(deployed.base))  # with the words that `ps` shows to everybody
        return bool(rows(path, "SELECT round FROM rounds"))

    until(is_trained, "the first round", deployed)
    deployed.finish(path)
    with closing(sqlite3.connect(f"file:{deployed.server / 'flower.db'}?mode=ro", uri=True)) as db:
        tokens = {token for (token,) in db.execute("SELECT token FROM task") if token}
    secrets = {token for token in tokens if len(token) > 20}
    apps = [words for words in commands if "serverapp" in words]
    assert secrets and apps and all("--token-file\0/proc/self/fd/" in words for words in apps)
    assert [words for words in commands if any(token in words for token in secrets)] == []


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
            "fedblocks federation run",
        )
    deployed.tend()
    assert (
        load_job(deployed.server, train).status == "stopped"
        and load_run(path).status == "interrupted"
    )
    # nothing such as "stopped: 0"
    assert rows(path, "SELECT text FROM notes WHERE level = 'warning'") == []


def test_a_job_of_no_name_is_refused(deployed: Deployed) -> None:
    with pytest.raises(UserError, match="not the name of a job"):
        load_job(deployed.server, "../server")
