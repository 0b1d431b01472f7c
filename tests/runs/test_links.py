"""A run folder from a stranger may hold links; nothing that they lead to is changed or removed."""

import os
from pathlib import Path
from typing import Any

import pytest

from fedblocks.core.errors import RunFolderError
from fedblocks.runs.storage import checkpoint
from fedblocks.runs.storage.folder import RunFolder, write_atomically
from fedblocks.runs.storage.store import RunStore

CONFIG: dict[str, Any] = {"seed": 3}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    RunFolder.create(tmp_path / "run", CONFIG, {}).close()
    return tmp_path / "run"


@pytest.fixture
def diary(tmp_path: Path) -> Path:
    """A file elsewhere that must stay as it is."""
    (tmp_path / "diary").write_text("mine")
    return tmp_path / "diary"


def test_a_lock_that_is_a_link_is_refused_and_what_it_leads_to_is_not_emptied(
    run: Path, diary: Path
) -> None:
    (run / "run.lock").unlink()
    (run / "run.lock").symlink_to(diary)
    with RunFolder.open(run) as folder, pytest.raises(RunFolderError, match=r"run\.lock is a link"):
        folder.claim()
    assert diary.read_text() == "mine"


def test_a_new_run_is_not_locked_through_a_link_either(tmp_path: Path, diary: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "run.lock").symlink_to(diary)
    with pytest.raises(RunFolderError, match=r"run\.lock is a link"):
        RunFolder.create(tmp_path / "new", CONFIG, {})
    assert diary.read_text() == "mine"


def test_a_lock_that_is_a_pipe_is_refused_instead_of_waited_for(run: Path) -> None:
    (run / "run.lock").unlink()
    os.mkfifo(run / "run.lock")
    with RunFolder.open(run) as folder, pytest.raises(RunFolderError, match="is not a file"):
        folder.claim()


@pytest.mark.parametrize("name", ["run.lock", "tensorboard", "mlflow.db", "anything"])
def test_a_folder_with_any_link_in_it_is_not_written(run: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(tmp_path / "elsewhere")
    with (
        RunFolder.open(run) as folder,
        pytest.raises(RunFolderError, match=f"{name} is a link") as caught,
    ):
        folder.claim()
    assert f"cp -RL {run} NEW_FOLDER" in caught.value.fix


@pytest.mark.parametrize("name", ["run.sqlite", "run.sqlite-wal"])
def test_a_record_that_is_a_link_is_not_even_read_for_sqlite_writes_as_it_reads(
    run: Path, tmp_path: Path, name: str
) -> None:
    RunStore.create(tmp_path / "foreign.sqlite").close()
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(tmp_path / "foreign.sqlite")
    with pytest.raises(RunFolderError, match=f"{name} is a link"):
        RunFolder.open(run)


@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
def test_a_draft_that_is_a_link_is_replaced_and_what_it_leads_to_stays(
    run: Path, diary: Path, link: Any
) -> None:
    link(run / ".report.html.tmp", diary)
    write_atomically(run / "report.html", "<html>")
    assert (run / "report.html").read_text() == "<html>" and not (run / "report.html").is_symlink()
    assert diary.read_text() == "mine"


def test_checkpoints_behind_a_link_are_neither_written_nor_removed(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    for round in (7, 8, 9):
        checkpoint.save(foreign, round, {"x": 1.0}, {}, changed=None, keep=3)
    (tmp_path / "checkpoints").symlink_to(foreign)
    with pytest.raises(RunFolderError, match="checkpoints is a link"):
        # later rounds would be removed
        checkpoint.save(tmp_path / "checkpoints", 1, {"x": 2.0}, {}, changed=None)
    assert sorted(os.listdir(foreign)) == ["round-000007", "round-000008", "round-000009"]


def test_a_draft_of_a_checkpoint_that_is_a_link_leads_nowhere(tmp_path: Path) -> None:
    root, foreign = tmp_path / "checkpoints", tmp_path / "foreign"
    root.mkdir()
    foreign.mkdir()
    (foreign / "manifest.json").write_text("mine")
    (root / f".tmp-{os.getpid()}-round-000001").symlink_to(foreign)
    checkpoint.save(root, 1, {"x": 2.0}, {}, changed=None)
    assert (
        os.listdir(foreign) == ["manifest.json"]
        and (foreign / "manifest.json").read_text() == "mine"
    )
    assert checkpoint.load(root).shared == {"x": 2.0} and os.listdir(root) == ["round-000001"]
