"""Small files are read up to a limit, and only if they are files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedblocks.core import small_files
from fedblocks.core.errors import UserError
from fedblocks.core.small_files import MOST_BYTES, is_file, need_content, read_small

pytestmark = pytest.mark.timeout(20)


@pytest.mark.parametrize("size", [0, 1, 10])
def test_a_file_up_to_the_limit_is_read_whole(size: int, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * size)
    assert read_small(tmp_path / "a", 10) == b"x" * size


@pytest.mark.parametrize(("most", "said"), [(10, "10 bytes"), (MOST_BYTES, "2 MiB")])
def test_a_file_beyond_the_limit_is_refused(most: int, said: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * (most + 1))
    with pytest.raises(ValueError, match=f"^it has more than {said}$"):
        read_small(tmp_path / "a", most)


def test_a_link_to_a_file_is_followed_and_one_to_a_device_is_not(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    (tmp_path / "c").symlink_to("/dev/zero")
    assert read_small(tmp_path / "b") == b"x"
    with pytest.raises(ValueError, match=r"^it is a device, not a plain file$"):
        read_small(tmp_path / "c")


def test_a_pipe_that_comes_after_the_first_look_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "a")
    monkeypatch.setattr(small_files, "special_kind", lambda path: "")
    with pytest.raises(ValueError, match=r"^it is something else, not a plain file$"):
        read_small(tmp_path / "a")


def test_what_cannot_be_read_is_said_with_its_path_and_cause_alone(tmp_path: Path) -> None:
    with pytest.raises(UserError) as missing:
        need_content(tmp_path / "a", "bring it back")
    assert missing.value.message == f"cannot read {tmp_path / 'a'}: No such file or directory"
    with pytest.raises(UserError) as folder:
        need_content(tmp_path, "bring it back")
    assert folder.value.message == f"cannot read {tmp_path}: it is a folder, not a plain file"
    assert missing.value.fix == folder.value.fix == "bring it back"


def test_a_file_of_another_user_is_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "a")

    monkeypatch.setattr(os, "open", refuse)  # root may read everything
    with pytest.raises(UserError) as refused:
        need_content(tmp_path / "a", "name another")
    assert refused.value.message == f"cannot read {tmp_path / 'a'}: Permission denied"
    assert refused.value.fix == "run this as the user that it belongs to, or name another"
    monkeypatch.setattr(Path, "is_file", refuse)
    assert not is_file(tmp_path / "a")


def test_no_file_stays_open_whatever_happens(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    before = len(os.listdir("/proc/self/fd"))
    for path in (tmp_path, tmp_path / "a", tmp_path / "b"):
        with pytest.raises((OSError, ValueError)):
            read_small(path, 0)
    assert len(os.listdir("/proc/self/fd")) == before
