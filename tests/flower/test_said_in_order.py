"""What is said of a run: in order, once, with one thing to do about it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedblocks[flower]'")

from fedblocks.config.model import Config
from fedblocks.core.errors import DataError, UserError
from fedblocks.flower.hosts import federation, running
from fedblocks.flower.hosts.server_host import _check_newcomers
from fedblocks.flower.keys import certificate_checks as checks
from fedblocks.flower.server.registry import Registry
from fedblocks.flower.server.watching import _Reported, note_failure, watch
from fedblocks.runs.run import run
from fedblocks.runs.storage.folder import RunFolder

from .key_folders import Federation
from .test_watching import TABLE


@pytest.fixture
def done(tmp_path: Path) -> Path:
    """A run of two rounds and two clients."""
    run(Config.of(TABLE), tmp_path / "run")
    return tmp_path / "run"


def test_a_warning_of_a_later_round_comes_after_the_line_of_the_round_before(done: Path) -> None:
    """The line of the newest round waits for its scores, which are there."""
    said: list[str] = []
    on_round, on_note = lambda r: said.append(f"{r.round}"), lambda note: said.append(note.text)
    with RunFolder.open(done) as folder:
        reported = _Reported(rounds=3)
        reported.notes = max(
            (row["rowid"] for row in folder.store.rows("SELECT rowid FROM notes")), default=0
        )
        reported.tell(folder.store, on_round, on_note, False)
        assert said == ["1"]
        folder.store.note("round 3 was abandoned", "warning")
        reported.tell(folder.store, on_round, on_note, False)
    assert said == ["1", "2", "round 3 was abandoned"]


def test_why_a_run_failed_is_said_once_with_one_fix(done: Path) -> None:
    def fail() -> None:
        with RunFolder.open(done) as folder:
            note_failure(folder.store, DataError("1 of 2 clients connected", "start client 1"))
            folder.set_status("failed")

    with RunFolder.open(done) as folder:
        folder.set_status("interrupted")
    notes: list[str] = []
    with pytest.raises(DataError) as caught:
        watch(done, lambda _: None, lambda n: notes.append(n.text), fail, "COMMAND")
    error = caught.value
    assert (error.message, error.fix) == (
        "1 of 2 clients connected",
        "start client 1; then: COMMAND",
    )
    assert not [text for text in notes if "1 of 2 clients connected" in text]


def fix_of(missing: list[int], refused: dict[int, str], keys: dict[int, str]) -> str:
    """What is to be done where these nodes are refused, which hold the keys of these clients."""
    registry = Registry(SimpleNamespace())  # type: ignore[arg-type]
    registry.refused = refused
    registry.turned_away = lambda client: keys.get(client, "")  # type: ignore[method-assign]
    return registry._fix_for(missing)


def test_clients_that_are_connected_and_refused_need_not_be_started() -> None:
    why = "not-allowed: this client sends no updates"
    assert fix_of([1], {}, {}) == "start client 1"
    there = "client 1 is connected and refused: remove the reason there, or in server.toml"
    assert fix_of([1], {101: why}, {1: why}) == there
    assert fix_of([0, 1], {101: why}, {1: why}) == f"start client 0; {there}"
    assert "for which nodes were refused" in fix_of([1], {101: why}, {})


def test_a_number_that_the_run_does_not_have_is_refused_at_once(done: Path) -> None:
    with RunFolder.open(done) as folder, pytest.raises(UserError, match="clients = 2: they are 0"):
        _check_newcomers(folder, [0, 2], lambda text: None)


def test_who_took_part_is_told_apart_from_a_newcomer(done: Path) -> None:
    said: list[str] = []
    with RunFolder.open(done) as folder:
        _check_newcomers(folder, [0], said.append)
    assert len(said) == 1 and said[0].startswith("client 0 took part in this run")


def test_a_finished_run_is_shown_without_a_job(
    done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def submit(*_: Any) -> None:
        raise AssertionError("nothing is left to do")

    monkeypatch.setattr(running, "submit", submit)
    monkeypatch.setattr(running, "enrol", submit)
    notes: list[str] = []
    server = Federation(tmp_path / "g").server
    result = federation.go_on(server, done, {}, lambda _: None, lambda n: notes.append(n.text))
    assert result.rounds == 2 and "finished already" in notes[0]


def test_a_clients_key_in_the_place_of_the_authoritys_is_called_a_key(tmp_path: Path) -> None:
    own = Federation(tmp_path)
    with pytest.raises(UserError, match="not the authority's"):
        checks.load_signer(own.server, own.joined("ward") / "client.key")
