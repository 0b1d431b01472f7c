"""A cache of decoded data: whole, or not there."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedblocks.data.sets import cache

ARRAYS = {"x": np.arange(6.0).reshape(2, 3), "y": np.array([1, 2])}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    cache.write(tmp_path / "kept" / "set", ARRAYS)
    return tmp_path / "kept" / "set"


def test_what_is_written_is_read_and_cannot_be_changed(folder: Path) -> None:
    found = cache.read(folder)
    assert found is not None and found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert found[name].tolist() == array.tolist() and not found[name].flags.writeable
    assert [path.name for path in folder.parent.iterdir()] == ["set"]
    assert folder.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("name", ["x.npy", "y.npy", cache.CONTENTS])
@pytest.mark.parametrize("how", ["changed", "missing"])
def test_a_cache_of_which_any_file_is_damaged_is_not_read_and_gives_way(
    name: str, how: str, folder: Path
) -> None:
    path = folder / name
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1] + b"!")
    assert cache.read(folder) is None
    cache.write(folder, ARRAYS)
    assert cache.read(folder) is not None


def test_a_cache_that_another_process_has_written_meanwhile_stays(folder: Path) -> None:
    before = (folder / "x.npy").stat().st_ino
    cache.write(folder, ARRAYS)
    assert (folder / "x.npy").stat().st_ino == before


def test_what_a_killed_process_left_is_removed_after_an_hour(folder: Path) -> None:
    ages = {"set.a.tmp": 3500, "set.b.tmp": 3700, "other.c.tmp": 3700, "set.d": 3700}
    for name, age in ages.items():
        (folder.parent / name).mkdir()
        os.utime(folder.parent / name, (time.time() - age,) * 2)
    cache.remove_abandoned(folder)
    left = sorted(path.name for path in folder.parent.iterdir())
    assert left == ["other.c.tmp", "set", "set.a.tmp", "set.d"]


def test_a_checksum_is_that_of_the_whole_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"123456789")
    monkeypatch.setattr(cache, "CHUNK", 4)
    assert cache.checksum(tmp_path / "a") == 0xCBF43926  # the check value of CRC-32


def test_a_key_is_another_for_another_file_form_version_or_choice(tmp_path: Path) -> None:
    def key(text: str = "abc", form: str = "idx", version: int = 1, **choices: Any) -> str:
        path = tmp_path / "file"
        path.write_text(text)
        os.utime(path, ns=(0, 0))
        local: Any = SimpleNamespace(paths=(path,), source=SimpleNamespace(form=form))
        return cache.key(local, version, choices)

    usual = key(a=1, b=2)
    assert usual == key(b=2, a=1) and len(usual) == 16
    others = {key(a=2, b=2), key("abcd", a=1, b=2), key(form="mat", a=1, b=2), key(version=2, a=1)}
    assert len(others | {usual}) == 5


def test_decoded_data_are_used_though_they_cannot_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("abc")
    local = SimpleNamespace(paths=(tmp_path / "file",), source=SimpleNamespace(form="idx"))
    verified: list[Any] = []
    decoded: list[Any] = []
    monkeypatch.setattr(cache, "find", lambda files: local)
    monkeypatch.setattr(cache, "verify", verified.append)
    monkeypatch.setenv(cache.CACHE, str(tmp_path / "cache"))
    decode = lambda own: decoded.append(own) or ARRAYS
    files: Any = SimpleNamespace(folder="set")
    for _ in range(2):
        found = cache.cached_arrays(files, decode, split="all")  # type: ignore[arg-type]
        assert found["y"].tolist() == [1, 2]
    assert decoded == verified == [local]  # the second time they are in the cache
    (kept,) = (tmp_path / "cache").iterdir()
    assert kept.name == f"set-{cache.key(local, 1, {'split': 'all'})}"  # type: ignore[arg-type]
    assert json.loads((kept / cache.CONTENTS).read_text()).keys() == ARRAYS.keys()
    monkeypatch.setenv(cache.CACHE, str(tmp_path / "file" / "inside"))
    with pytest.warns(UserWarning, match="the decoded data set is not kept"):
        assert cache.cached_arrays(files, decode) is ARRAYS  # type: ignore[arg-type]
    monkeypatch.setattr(cache, "roots", lambda: [tmp_path])
    monkeypatch.setenv(cache.CACHE, "")
    assert cache.cache_folder() == tmp_path / ".cache"
    monkeypatch.setenv(cache.CACHE, "~/kept")
    assert cache.cache_folder() == Path.home() / "kept"
