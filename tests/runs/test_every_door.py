"""Whichever way one goes on with a run (resume it, give it more rounds, make it a lane), the same
things are refused; and whatever a run writes is on the disk before it has its name.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fedblocks.config.model import Config
from fedblocks.core.errors import CheckpointError, DataError, RunFolderError, UserError
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.runs.build import prepare
from fedblocks.runs.grids.lanes import Waiting, run_queue
from fedblocks.runs.result import load_run
from fedblocks.runs.rounds import attempt
from fedblocks.runs.run import REAL, hardware, resume, run, threads
from fedblocks.runs.storage.folder import RunFolder, write_atomically
from fedblocks.runs.storage.record import Note

Table = dict[str, Any]


def as_lane(path: Path) -> None:
    with RunFolder.open(path) as folder:
        config = Config.of(folder.config)
    run_queue([Waiting(prepare(config), path)])


DOORS: dict[str, Callable[[Path], object]] = {
    "resume": resume,
    "extend": lambda path: resume(path, rounds="+1"),
    "a lane": as_lane,
}


@pytest.fixture
def path(small: Table, tmp_path: Path) -> Path:
    """A run of 3 rounds that was stopped after the second."""
    out = tmp_path / "run"
    stop = lambda done: "enough" if done.round == 2 else None
    run(Config.of({**small, "checkpoint": {"every": 1}}), out, on_round=stop)
    with RunFolder.open(out) as folder:
        folder.claim()
        folder.set_status("interrupted")
    return out


@pytest.mark.parametrize("door", DOORS)
def test_a_run_that_somebody_writes_is_refused(path: Path, door: str) -> None:
    with RunFolder.open(path) as other:
        other.claim()
        with pytest.raises(RunFolderError, match="is being written by"):
            DOORS[door](path)
    DOORS[door](path)


@pytest.mark.parametrize("door", DOORS)
def test_a_run_whose_configuration_was_edited_is_refused(path: Path, door: str) -> None:
    config = path / "config.toml"
    config.write_text(config.read_text().replace("lr = 0.1", "lr = 0.2"))
    with pytest.raises(UserError, match="lr"):
        DOORS[door](path)


@pytest.mark.parametrize("door", DOORS)
def test_a_run_whose_record_was_changed_is_refused(path: Path, door: str) -> None:
    with sqlite3.connect(path / "run.sqlite") as record:
        record.execute("UPDATE rounds SET seconds = seconds + 1")
    with pytest.raises(UserError, match=r"record|sqlite"):
        DOORS[door](path)


@pytest.mark.parametrize("door", DOORS)
def test_a_run_on_other_data_is_refused(path: Path, door: str) -> None:
    before = (path / "config.toml").read_text()
    with RunFolder.open(path) as folder:
        folder.claim()
        folder.store.set_meta("federation", "another")
    with pytest.raises(DataError, match="the data differ"):
        DOORS[door](path)
    assert (path / "config.toml").read_text() == before


@pytest.mark.parametrize("door", ["resume", "extend"])
def test_a_run_of_a_real_federation_is_refused(path: Path, door: str) -> None:
    with RunFolder.open(path) as folder:
        folder.claim()
        folder.store.set_meta(REAL, "yes")
    with pytest.raises(RunFolderError, match="of a real federation"):
        DOORS[door](path)


@pytest.mark.parametrize("door", ["resume", "a lane"])
def test_a_run_with_other_frozen_blocks_is_refused(path: Path, door: str) -> None:
    with RunFolder.open(path) as folder:
        folder.claim()
        folder.store.set_meta("frozen", '{"body": "0123"}')
    with pytest.raises(CheckpointError, match='frozen block "body"'):
        DOORS[door](path)


@pytest.mark.parametrize("door", ["resume", "a lane"])
def test_a_run_that_goes_on_ends_finished_with_each_note_once(path: Path, door: str) -> None:
    DOORS[door](path)
    result = load_run(path)
    assert result.status == "finished" and result.rounds == 3
    with RunFolder.open(path) as folder:
        notes = [row["text"] for row in folder.store.rows("SELECT text FROM notes")]
    assert notes and len(notes) == len({*notes})


def synced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What is synced and renamed from now on, in this order."""
    events: list[tuple[str, str]] = []
    fsync, replace, rename = os.fsync, os.replace, os.rename

    def note_sync(file: int) -> None:
        events.append(("sync", os.readlink(f"/proc/self/fd/{file}")))
        fsync(file)

    def note_name(how: Callable[..., None]) -> Callable[..., None]:
        def named(old: Any, new: Any, **more: Any) -> None:
            events.append(("name", f"{os.path.abspath(old)} {os.path.abspath(new)}"))
            how(old, new, **more)

        return named

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "replace", note_name(replace))
    monkeypatch.setattr(os, "rename", note_name(rename))
    return events


def test_whatever_a_run_gives_a_name_was_synced_before(
    small: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = synced(monkeypatch)
    run(Config.of({**small, "checkpoint": {"every": 1}}), tmp_path / "run")
    named = [(place, text.split()) for place, (kind, text) in enumerate(events) if kind == "name"]
    finished = [(place, old) for place, (old, new) in named if not Path(new).name.startswith(".")]
    assert sum("round-" in old for _, old in finished) == 3  # a checkpoint for each round
    for place, draft in finished:
        before = [path for kind, path in events[:place] if kind == "sync"]
        assert draft in before and ("sync", str(Path(draft).parent)) in events[place:]
        if "round-" in draft:
            inside = {Path(path).name for path in before if path.startswith(f"{draft}/")}
            assert {"clients", "manifest.json"} < inside and len(inside) >= 4


def test_a_file_and_the_list_of_names_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = synced(monkeypatch)
    file = tmp_path / "a.txt"
    write_atomically(file, "new")
    draft = str(tmp_path / ".a.txt.tmp")
    assert events == [("sync", draft), ("name", f"{draft} {file}"), ("sync", str(tmp_path))]
    assert file.read_text() == "new" and os.listdir(tmp_path) == ["a.txt"]


def test_threads_are_as_before_afterwards() -> None:
    before = torch.get_num_threads()
    with threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
    with threads(None):
        assert torch.get_num_threads() == before


def test_the_precision_of_a_configuration_ends_with_its_run(small: Table) -> None:
    switches = [torch.backends.cuda.matmul, torch.backends.cudnn]
    before = [switch.allow_tf32 for switch in switches]
    with hardware(Config.of({**small, "precision": "tf32"})):
        assert all(switch.allow_tf32 for switch in switches)
    with hardware(Config.of(small)):
        assert not any(switch.allow_tf32 for switch in switches)
    assert [switch.allow_tf32 for switch in switches] == before


def test_a_stack_that_fails_is_done_one_client_after_another_and_says_why_in_a_line() -> None:
    notes: list[Note] = []

    def work(engine: Any) -> str:
        if isinstance(engine, Vectorised):
            raise RuntimeError("\n  the cause\nmore\n")
        return "done"

    engine, result = attempt(work, Vectorised(), 4, notes)
    assert isinstance(engine, Sequential) and result == "done"
    (note,) = notes
    assert note.text.endswith("failed (the cause)") and note.level == "warning"

    def always(engine: Any) -> str:
        raise UserError("wrong", "mend it")

    with pytest.raises(UserError, match="wrong"):
        attempt(always, Vectorised(), 4, [])
