"""What folders of runs hold, byte by byte and name by name."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedblocks.core.errors import RunFolderError
from fedblocks.runs.storage import checkpoint, folder
from fedblocks.runs.storage.folder import AFTER_CONFIG, BEFORE_CONFIG, CONFIG, REAL, STORE
from fedblocks.runs.storage.manifest import seal

ALL = BEFORE_CONFIG | AFTER_CONFIG


def test_a_manifest_is_sealed_in_the_bytes_of_ever() -> None:
    """Other bytes of the same content would be taken for damage."""
    digest = sha256(b'{"a": [1], "round": 2}').hexdigest()
    text = f'{{\n "a": [\n  1\n ],\n "round": 2,\n "seal": "{digest}"\n}}'
    assert seal({"round": 2, "a": [1]}) == text.encode()


@pytest.mark.parametrize(
    ("names", "status", "last", "real", "failed"),
    [
        ({CONFIG, STORE}, "failed", None, None, True),
        (ALL, "failed", None, None, True),
        (ALL | {"diary"}, "failed", None, None, False),
        ({CONFIG}, "failed", None, None, False),
        ({STORE}, "failed", None, None, False),
        ({CONFIG, STORE}, "stopped", None, None, False),
        ({CONFIG, STORE}, "failed", 0, None, False),
        ({CONFIG, STORE}, "failed", 3, None, False),
        ({CONFIG, STORE}, "failed", None, "name", False),
    ],
)
def test_a_run_failed_at_once_if_it_holds_no_round_and_nothing_else(
    names: set[str],
    status: str,
    last: int | None,
    real: str | None,
    failed: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[Path] = []
    looked: list[Path] = []
    closed: list[bool] = []

    def store(path: Path) -> Any:
        opened.append(path)
        metas = {"status": status, REAL: real}
        return SimpleNamespace(
            meta=metas.get, last_round=lambda: last, close=lambda: closed.append(True)
        )

    monkeypatch.setattr(folder, "RunStore", store)
    monkeypatch.setattr(folder, "refuse_links", looked.append)
    assert folder._failed_at_once(tmp_path, set(names)) is failed
    if opened:
        assert opened == [tmp_path / STORE] and looked == [tmp_path] and closed == [True]


def test_a_run_with_a_damaged_record_is_not_cleared_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(path: Path) -> Any:
        raise RunFolderError("damaged", "")

    monkeypatch.setattr(folder, "RunStore", damaged)
    assert not folder._failed_at_once(tmp_path, {CONFIG, STORE})


@pytest.mark.parametrize("failed", [True, False])
def test_only_a_run_that_failed_at_once_makes_way(
    failed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "_failed_at_once", lambda path, names: failed)
    for name in (CONFIG, STORE, folder.CONSTANTS, folder.code_record.FILE):
        (tmp_path / name).touch()
    (tmp_path / folder.FROZEN).mkdir()
    before = {path.name for path in tmp_path.iterdir()}
    folder._clear_failure(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == ({STORE} if failed else before)


def test_a_run_of_a_real_federation_goes_on_where_its_server_is(tmp_path: Path) -> None:
    assert folder.command_for_real(tmp_path).endswith("--server FOLDER")
    (tmp_path / "federation" / "server").mkdir(parents=True)
    assert folder.command_for_real(tmp_path) == f"fedblocks federation local {tmp_path}"
    assert folder._continuing(tmp_path) == f"fedblocks resume {tmp_path}"  # no record says so


def test_leftovers_of_processes_that_are_gone_are_removed_as_far_as_they_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = (f".tmp-{os.getpid()}-a", ".tmp-7-b", ".tmp-8-c", "round-000001", ".tmp-x-d")
    for name in names:
        (tmp_path / name).mkdir()
    (tmp_path / ".tmp-9-link").symlink_to(tmp_path / "round-000001")
    asked: list[Any] = []
    monkeypatch.setattr(checkpoint, "alive", lambda number: number == 8)
    monkeypatch.setattr(
        checkpoint.shutil, "rmtree", lambda path, ignore_errors: asked.append(path.name)
    )
    checkpoint._remove_leftovers(tmp_path)
    assert sorted(asked) == sorted(names[:2])  # also where something in them cannot be removed
    assert not (tmp_path / ".tmp-9-link").is_symlink() and (tmp_path / "round-000001").is_dir()
