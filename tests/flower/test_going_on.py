"""A run of a real federation goes on where it says, or says why it does not."""

from __future__ import annotations

import errno
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedblocks[flower]'")

from fedblocks.config.model import Config
from fedblocks.core.errors import CheckpointError, RunFolderError
from fedblocks.flower.client.store import PersonalStore
from fedblocks.flower.hosts import federation, launch, running
from fedblocks.flower.hosts.federation import go_on, hold_run, job_for, new_run
from fedblocks.flower.server import jobs, watching
from fedblocks.flower.server.going_on import check_run
from fedblocks.flower.server.watching import watch
from fedblocks.runs.result import load_run
from fedblocks.runs.run import run
from fedblocks.runs.storage.environment import now
from fedblocks.runs.storage.folder import REAL, RunFolder
from fedblocks.runs.storage.record import RoundRecord

from .test_service import Host, scores, stop_after

TERMS = {"seconds": 30.0, "patience": 5.0}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """A run whose server was killed after its second round."""
    host = Host(tmp_path)
    with pytest.raises(SystemExit):
        host.serve(stop_after(2))
    with RunFolder.open(host.path) as folder:
        folder.set_status("interrupted")
    return host


@pytest.fixture
def asked(host: Host, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What Flower is asked for; the job of the host is over."""
    words: list[Any] = []
    monkeypatch.setattr(launch, "ask", lambda *own: words.append(own) or {"run-id": 7})
    jobs.update_job(host.server, host.job, status="failed")
    return words


def notes_of(host: Host) -> list[str]:
    return [row["text"] for row in host.rows("SELECT text FROM notes WHERE level = 'warning'")]


def damage(host: Host, round: int) -> None:
    file = host.path / "checkpoints" / f"round-{round:06d}" / "shared.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def lose(host: Host, command: str) -> None:
    with closing(sqlite3.connect(host.path / "run.sqlite", isolation_level=None)) as db:
        db.execute("PRAGMA foreign_keys = ON")
        db.execute(command)


def test_a_damaged_checkpoint_is_named_and_the_round_said_from_which_it_goes_on(
    host: Host, tmp_path: Path
) -> None:
    damage(host, 2)
    assert check_run(host.path) == 1
    host.serve()
    assert notes_of(host) == [
        "passed over a checkpoint: round-000002: shared.safetensors is damaged (its SHA-256 "
        "differs from the manifest's)",
        "going on from round 1",
    ]
    run(host.config, tmp_path / "simulated")
    assert scores(host.path) == pytest.approx(scores(tmp_path / "simulated"), abs=1e-9)


def test_a_round_that_the_record_lost_is_played_again(host: Host, tmp_path: Path) -> None:
    lose(host, "DELETE FROM rounds WHERE round = 2")
    assert check_run(host.path) == 1
    host.serve()
    assert "going on from round 1" in notes_of(host)
    assert [row["round"] for row in host.rows("SELECT round FROM rounds")] == [1, 2, 3, 4]
    run(host.config, tmp_path / "simulated")
    assert scores(host.path) == pytest.approx(scores(tmp_path / "simulated"), abs=1e-9)


def test_a_run_whose_record_lost_all_rounds_does_not_go_on(host: Host) -> None:
    lose(host, "DELETE FROM rounds")
    for attempt in (lambda: check_run(host.path), host.serve):
        with pytest.raises(CheckpointError, match="record of the run ends with round 0"):
            attempt()


def test_a_run_without_checkpoints_says_that_it_starts_anew(host: Host) -> None:
    shutil.rmtree(host.path / "checkpoints")
    assert check_run(host.path) == 0
    host.serve()
    assert load_run(host.path).rounds == 4
    assert "rounds 1 to 2 are played again" in notes_of(host)[0]


def test_a_finished_run_that_was_given_more_rounds_goes_on(host: Host, tmp_path: Path) -> None:
    """As `resume` does; it ended at once, and said that it was finished."""
    host.serve()
    assert check_run(host.path) == 0 and load_run(host.path).status == "finished"
    config = host.path / "config.toml"
    config.write_text(config.read_text().replace("rounds = 4\n", "rounds = 5\n", 1))
    assert check_run(host.path) == 4 and load_run(host.path).status == "interrupted"
    host.serve()
    assert load_run(host.path).rounds == 5


def test_rounds_that_are_played_again_are_told_again(host: Host) -> None:
    damage(host, 2)
    rounds: list[int] = []
    notes: list[str] = []

    def play_again() -> None:
        with RunFolder.open(host.path) as folder:
            folder.store.record_round(RoundRecord(2, 1.0, 6, started_at=now()))
            folder.set_status("finished")

    told = (lambda done: rounds.append(done.round), lambda note: notes.append(note.text))
    watch(host.path, *told, play_again, "command", check_run(host.path))
    assert rounds == [2] and notes == ["going on after round 1"]


@pytest.mark.parametrize("replaced", [True, False])
def test_whoever_waits_for_a_run_whose_folder_is_moved_is_told_that(
    host: Host, tmp_path: Path, replaced: bool
) -> None:
    def move() -> None:
        host.path.rename(tmp_path / "elsewhere")
        if replaced:
            shutil.copytree(tmp_path / "elsewhere", host.path)

    with pytest.raises(RunFolderError, match=f"{host.path} was moved, deleted or rep") as caught:
        watch(host.path, lambda done: None, lambda note: None, move, "go on", 2)
    assert "move it back, then: go on" in caught.value.fix


def test_whoever_waits_for_a_run_is_told_once_that_its_disk_is_full(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "LOOK", 0.0)
    monkeypatch.setattr(watching, "is_full", lambda path: True)
    looks: list[int] = []
    notes: list[str] = []

    def end() -> None:
        looks.append(1)
        if len(looks) == 3:
            with RunFolder.open(host.path) as folder:
                folder.set_status("finished")

    watch(host.path, lambda done: None, lambda note: notes.append(note.text), end, "go on", 2)
    assert [text.partition(" (")[0] for text in notes[1:]] == [f"the disk of {host.path} is full"]


def edit(host: Host) -> None:
    file = host.path / "config.toml"
    file.write_text(file.read_text().replace("lr = 0.3", "lr = 0.4"))


def forge(host: Host) -> None:
    lose(host, "UPDATE rounds SET seconds = 9.0")


@pytest.mark.parametrize(
    ("harm", "message"), [(edit, r"method.lr was 0.3, now 0.4"), (forge, "differs from its check")]
)
def test_nothing_is_announced_of_a_run_that_is_refused(
    host: Host,
    asked: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    harm: Callable[[Host], None],
    message: str,
) -> None:
    harm(host)
    notes: list[Any] = []
    monkeypatch.setattr(federation, "watch", notes.append)
    with pytest.raises(RunFolderError, match=message):
        go_on(host.server, host.path, TERMS, lambda done: None, notes.append)
    assert notes == [] and asked == [] and jobs.unfinished_jobs(host.server) == []


def test_a_run_folder_in_use_is_exit_code_4_everywhere(host: Host, asked: list[Any]) -> None:
    again = lambda: go_on(host.server, host.path, TERMS, lambda done: None, lambda note: None)
    with RunFolder.open(host.path) as folder:
        folder.claim()
        with pytest.raises(RunFolderError, match=r"is being written by process \d+"):
            again()
    running.submit(host.server, job_for(host.path, "f", kind="train", **TERMS))
    with pytest.raises(RunFolderError, match=r"is training .* already"):
        again()
    with hold_run(host.server), pytest.raises(RunFolderError, match="already works in"):
        hold_run(host.server).__enter__()
    assert RunFolderError.exit_code == 4


def test_a_copy_of_a_run_is_not_trained_with_the_personal_state_of_the_first(
    host: Host, asked: list[Any], tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(host.path, copy)
    submit = lambda path: running.submit(host.server, job_for(path, "f", kind="train", **TERMS))
    with pytest.raises(RunFolderError, match=f"{copy} is a copy of {host.path}, which") as caught:
        submit(copy)
    assert f"federation run {copy / 'config.toml'} --server {host.server}" in caught.value.fix
    host.path.rename(tmp_path / "elsewhere")  # a run that was moved is no copy
    jobs.update_job(host.server, submit(tmp_path / "elsewhere").name, status="failed")
    shutil.rmtree(tmp_path / "elsewhere")
    submit(copy)


@pytest.mark.parametrize("name", ["my run", "büro.1", "x" * 90])
def test_the_name_of_any_folder_gives_clients_a_place_and_none_has_that_of_another(
    tmp_path: Path, name: str
) -> None:
    table = {
        "rounds": 1,
        "data": {"name": "digits", "clients": 2},
        "net": {"name": "mlp", "hidden": [4]},
        "method": {"name": "fedavg"},
    }
    known = set()
    for _ in range(2):
        path = new_run(Config.of(table), tmp_path / name, [])
        with RunFolder.open(path) as folder:
            known.add(str(folder.store.meta(REAL)))
        shutil.rmtree(path)
    assert len(known) == 2
    for run_name in known:
        PersonalStore.of(tmp_path, "f", run_name, 0)


def no_room(*arguments: Any, **more: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("place", ["write_atomically", "write_app"])
def test_a_full_disk_of_the_server_is_named_with_what_is_free(
    host: Host, asked: list[Any], monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    target = jobs if place == "write_atomically" else Path
    monkeypatch.setattr(target, place if target is jobs else "write_text", no_room)
    full = r"cannot write .*/jobs.*: No space left on device \([\d.]+ MB are free\)"
    with pytest.raises(RunFolderError, match=full) as caught:
        running.submit(host.server, job_for(host.path, "f", kind="train", **TERMS))
    assert "free space on that disk" in caught.value.fix


def test_a_server_lives_on_where_its_disk_is_full_and_takes_its_jobs_up_later(
    host: Host, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.update_job(host.server, host.job, status="running")  # and its app is gone
    said: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", no_room)
        running.take_up(host.server, said.append)
    assert "cannot be started yet: cannot write" in said[0] and "No space left" in said[0]
    running.take_up(host.server, said.append)
    assert "going on from the last round that it stored" in said[1]
