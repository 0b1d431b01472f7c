"""A full disk is said in words, with what is free on it, wherever it is met."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from fedblocks.cli import app
from fedblocks.core.errors import RunFolderError
from fedblocks.core.full_disks import free_on, is_full, write_error, writing
from fedblocks.runs.storage.folder import write_atomically


def full(number: int = errno.ENOSPC, *file: Any) -> OSError:
    return OSError(number, os.strerror(number), *file)


def test_an_error_of_the_disk_says_what_could_not_be_written_and_what_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"free": 123_456})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    with pytest.raises(RunFolderError) as caught, writing(tmp_path / "not" / "there"):
        raise full()
    expected = f"cannot write {tmp_path}/not/there: No space left on device (0.1 MB are free)"
    assert caught.value.message == expected and "free space on that disk" in caught.value.fix
    assert is_full(tmp_path) and free_on(tmp_path) == "0.1 MB are free"
    usage.free = 2**20
    assert not is_full(tmp_path)


def test_another_error_of_the_disk_says_nothing_of_room(tmp_path: Path) -> None:
    error = write_error(tmp_path, full(errno.EROFS))
    assert (error.message, error.fix) == (
        f"cannot write {tmp_path}: Read-only file system",
        "make it writable",
    )


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_command_that_meets_a_full_disk_anywhere_ends_with_code_4(
    number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(**_: Any) -> None:
        raise full(number, "/some/file")

    monkeypatch.setattr(app, "command", lambda: fails)
    with pytest.raises(SystemExit) as caught:
        app.main(["doctor"])
    said = capsys.readouterr().err
    assert caught.value.code == 4 and "cannot write /some/file" in said and "MB are free" in said
    assert "bug" not in said


def test_half_a_file_is_not_left_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("old")

    def half(path: Path, text: str) -> None:
        path.write_text(text[: len(text) // 2])
        raise full()

    monkeypatch.setattr("fedblocks.runs.storage.folder.write_new", half)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(tmp_path / "file", "new text")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "old"
