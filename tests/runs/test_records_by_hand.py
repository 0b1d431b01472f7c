"""How a record is opened, and how data are kept that several runs share."""

from __future__ import annotations

import os
import sqlite3
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fedblocks as fb
from fedblocks.core.errors import RunFolderError
from fedblocks.runs import shelf
from fedblocks.runs.storage import database


@pytest.mark.parametrize(
    ("writable", "side", "mode"),
    [
        (True, False, "rw"),
        (True, True, "rw"),
        (False, True, "ro"),
        (False, False, "ro&immutable=1"),
    ],
)
def test_a_record_is_opened_to_be_written_where_its_folder_can_be(
    writable: bool, side: bool, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    done: list[str] = []

    def connect(name: str, **options: Any) -> Any:
        asked.append((name, options))
        return SimpleNamespace(execute=done.append)

    monkeypatch.setattr(sqlite3, "connect", connect)
    monkeypatch.setattr(os, "access", lambda folder, how: writable)
    if side:
        (tmp_path / "run.sqlite-wal").touch()
    database.connect(tmp_path / "run.sqlite")
    name = f"{(tmp_path / 'run.sqlite').resolve().as_uri()}?mode={mode}"
    assert asked == [(name, {"uri": True, "timeout": 30.0, "isolation_level": None})]
    assert done == ["PRAGMA synchronous = FULL", "PRAGMA foreign_keys = ON"]


def test_a_side_file_is_folded_without_waiting_and_later_waits_are_as_before() -> None:
    done: list[str] = []

    def execute(text: str) -> Any:
        done.append(text)
        if "checkpoint" in text:
            raise sqlite3.OperationalError("locked")

    with pytest.raises(sqlite3.OperationalError):
        database.fold(SimpleNamespace(execute=execute))  # type: ignore[arg-type]
    assert done == [
        "PRAGMA busy_timeout = 0", "PRAGMA wal_checkpoint(TRUNCATE)", "PRAGMA busy_timeout = 30000",
    ]  # fmt: skip


def error_of(code: int) -> sqlite3.DatabaseError:
    error = sqlite3.OperationalError("bad")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (error_of(sqlite3.SQLITE_CORRUPT), "is damaged: bad"),
        (error_of(sqlite3.SQLITE_NOTADB | 256), "is damaged: bad"),  # of a finer kind
        (error_of(sqlite3.SQLITE_BUSY), "cannot use the record a: bad"),
        (error_of(sqlite3.SQLITE_FULL), "cannot use the record a: bad (no room)"),
        (OSError("gone"), "cannot use the record a: gone"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "odd"), "is damaged: 'utf-8' codec"),
    ],
)
def test_errors_of_a_record_say_what_it_is(
    error: Exception, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "free_on", lambda path: "no room")
    monkeypatch.setattr(database, "is_full", lambda path: False)
    with pytest.raises(RunFolderError) as told, database.readable_errors(Path("a")):
        raise error
    assert said in told.value.message and told.value.__cause__ is error


@pytest.mark.parametrize("kind", [sqlite3.IntegrityError, sqlite3.ProgrammingError])
def test_mistakes_of_the_program_stay_as_they_are(kind: type[Exception]) -> None:
    with pytest.raises(kind), database.readable_errors(Path("a")):
        raise kind("mine")


def config(**options: Any) -> Any:
    return SimpleNamespace(data=SimpleNamespace(name="set", options=options), task=None)


def test_data_are_read_once_in_whatever_order_their_options_are_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[Any] = []
    monkeypatch.setattr(shelf, "pool_of", lambda own: read.append(own) or len(read))
    kept = shelf.Shelf()
    first = kept.pool(config(a=1, b=2))
    assert kept.pool(config(b=2, a=1)) == first and kept.pool(config(a=1, b=3)) != first
    kept.pool(config(a=1, b=2))  # so that it is not the oldest
    kept.pool(config(a=9))
    assert kept.pool(config(a=1, b=2)) == first and len(read) == 3
    kept.pool(config(a=1, b=3))
    assert len(read) == 4  # it was let go: two are kept


def test_the_oldest_is_let_go_first() -> None:
    order = OrderedDict.fromkeys("abcd")
    shelf._keep(order, 2)
    assert list(order) == ["c", "d"]
    shelf._keep(order, 2)
    assert list(order) == ["c", "d"]


def test_federations_over_the_same_rows_have_them_on_the_device_once() -> None:
    one = fb.small_federation()
    other = one.to("cpu")
    kept = shelf.Shelf()
    cpu = torch.device("cpu")
    kept.federations["one"] = (one, one)
    assert kept._place(other, cpu).x is one.x
    assert shelf._same(one.x, one.x) and not shelf._same(one.x, one.x[:3])
    apart = fb.small_federation(seed=1)
    assert not shelf._same(one.x, apart.x) and kept._place(apart, cpu).x is not one.x


def test_a_part_of_a_federation_has_the_hash_of_the_whole() -> None:
    whole, part = fb.small_federation(), fb.small_federation(seed=1)
    shelf.remember_hash(part, whole)
    assert shelf.hash_of(part) == shelf.hash_of(whole) == whole.hash() != part.hash()
