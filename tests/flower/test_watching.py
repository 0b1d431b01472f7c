"""What somebody sees of a run that goes on: what is new, once, and no old end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fedblocks.config.model import Config
from fedblocks.flower.hosts import federation, running
from fedblocks.flower.server import going_on, watching
from fedblocks.flower.server.watching import watch
from fedblocks.runs.run import run
from fedblocks.runs.storage.folder import RunFolder, Status

TABLE = {
    "rounds": 2,
    "threads": 1,
    "device": "cpu",
    "data": {"name": "digits", "clients": 2, "split": [0.6, 0.2, 0.2]},
    "net": {"name": "mlp", "hidden": [4]},
    "method": {"name": "fedavg", "batch_size": 64},
}


@pytest.fixture
def done(tmp_path: Path) -> Path:
    """A run of two rounds."""
    run(Config.of(TABLE), tmp_path / "run")
    return tmp_path / "run"


def put(path: Path, status: Status) -> None:
    with RunFolder.open(path) as folder:
        folder.set_status(status)


def seen(path: Path, tend: Callable[[], object]) -> tuple[list[int], list[str]]:
    rounds: list[int] = []
    notes: list[str] = []
    on_round, on_note = lambda done: rounds.append(done.round), lambda note: notes.append(note.text)
    after = going_on.check_run(path)
    watch(path, on_round, on_note, tend, "fedblocks federation local", after)
    return rounds, notes


def test_all_rounds_of_a_finished_run_are_told(done: Path) -> None:
    assert seen(done, lambda: None)[0] == [1, 2]


def test_of_a_run_that_goes_on_nothing_is_told_twice(done: Path) -> None:
    put(done, "interrupted")
    assert seen(done, lambda: put(done, "finished")) == ([], ["going on after round 2"])


@pytest.mark.parametrize("before", ["running", "failed", "interrupted"])
def test_a_run_that_is_submitted_anew_is_not_over(before: Status, done: Path) -> None:
    put(done, before)  # "running": its process is gone, since nobody holds the lock
    running._settle(done)
    assert seen(done, lambda: put(done, "finished"))[1] == ["going on after round 2"]


def test_somebody_who_stops_a_federation_is_told_how_to_go_on(done: Path) -> None:
    put(done, "running")
    error = federation.interruption(done, "local")
    assert (
        error.message == "stopped after round 2"
        and error.fix == f"go on with: fedblocks federation local {done}"
    )
    with RunFolder.open(done) as folder:
        assert folder.store.meta("status") == "interrupted"


def test_a_full_disk_is_told_once_without_the_promise_that_the_run_goes_on_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job of a run whose disk alone is full fails, and is continued by a command."""
    monkeypatch.setattr(watching, "is_full", lambda path: True)
    notes: list[str] = []
    reported = watching._Reported(rounds=2)
    for _ in range(2):
        reported.tell_of_full_disk(tmp_path, lambda note: notes.append(note.text))
    (text,) = notes
    assert text.endswith("make room: the run goes on, or ends and says how to continue it")
