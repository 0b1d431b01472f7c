"""Checksums of a record are those that earlier versions wrote: row by row, as they stand here."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256

import pytest

from fedblocks.runs.storage import seals
from fedblocks.runs.storage.store import SCHEMAS, VERSION

ROWS = {
    "rounds": ["1, 0.5, 2, 8, 4, 'then'", "2, 0.25, 2, 8, 4, 'later'"],
    "client_metrics": ["1, 'test', 'personal', 1, 2.0, 4.0, 0.5, '{}'"],
    "means": ["1, 'test', 'personal', 1, 0.5"],
    "traffic": ["1, 1, 'model', 'up', 4", "1, 0, 'model', 'down', 8"],
    "refusals": ["1, 7, 'shape', 'b'", "1, 3, 'shape', 'a'"],
    "snapshots": ["1, 'mix', 0, '[0.5]'"],
    "notes": ["NULL, 'then', 'info', 'whole'", "2, 'then', 'info', 'odd'"],
    "meta": ["'engine', 'sequential'"],
}
FIRST = (
    "rounds(1, 1, 0.5, 2, 8, 4, 'then')\n"
    "client_metrics(1, 1, 'test', 'personal', 1, 2.0, 4.0, 0.5, '{}')\n"
    "means(1, 1, 'test', 'personal', 1, 0.5)\n"
    "traffic(1, 1, 0, 'model', 'down', 8)\n"
    "traffic(1, 1, 1, 'model', 'up', 4)\n"
    "refusals(1, 1, 1, 7, 'shape', 'b')\n"
    "refusals(1, 2, 1, 3, 'shape', 'a')\n"
    "snapshots(1, 1, 'mix', 0, '[0.5]')\n"
)
SECOND = "rounds(2, 2, 0.25, 2, 8, 4, 'later')\nnotes(2, 2, 2, 'then', 'info', 'odd')\n"
WHOLE = "meta('engine', 'sequential')\nnotes(1, None, 'then', 'info', 'whole')\n"


def hashed(text: str) -> str:
    return sha256(text.encode()).hexdigest()


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(SCHEMAS[VERSION])
        for table, rows in ROWS.items():
            for row in rows:
                db.execute(f"INSERT INTO {table} VALUES ({row})")
        yield db


def test_a_round_is_sealed_by_the_text_of_its_rows(db: sqlite3.Connection) -> None:
    seals.seal_rounds(db, 2)
    assert dict(db.execute("SELECT * FROM seals")) == {2: hashed(SECOND)}
    seals.seal_rounds(db, 1)
    assert dict(db.execute("SELECT * FROM seals")) == {1: hashed(FIRST), 2: hashed(SECOND)}
    seals.seal_whole(db)
    stored = db.execute("SELECT value FROM meta WHERE key = 'seal'").fetchone()
    assert stored == (hashed(WHOLE),)
    seals.seal_whole(db)  # the checksum is no part of itself
    assert db.execute("SELECT value FROM meta WHERE key = 'seal'").fetchone() == stored


def test_what_differs_from_its_checksum_is_named_first_rounds_then_facts(
    db: sqlite3.Connection,
) -> None:
    seals.seal_rounds(db, 1)
    assert seals._difference(db) == "the facts and notes about the run differ from their checksum"
    seals.seal_whole(db)
    assert seals._difference(db) is None
    changes = {
        "UPDATE meta SET value = 'other' WHERE key = 'engine'": "the facts and notes",
        "UPDATE notes SET text = 'x' WHERE round IS NULL": "the facts and notes",
        "UPDATE traffic SET bytes = 9 WHERE client = 1": "round 1 differs",
        "UPDATE notes SET rowid = 9 WHERE round = 2": "round 2 differs",
        "DELETE FROM seals WHERE round = 1": "round 1 differs",
        "INSERT INTO rounds VALUES (4, 0.0, 0, 0, 0, '')": "round 4 differs",
    }
    for change, said in changes.items():
        db.execute("SAVEPOINT before")
        db.execute(change)
        assert str(seals._difference(db)).startswith(said), change
        db.execute("ROLLBACK TO before")


def test_a_round_in_between_that_is_missing_is_named(db: sqlite3.Connection) -> None:
    for table in ("rounds", "notes"):
        db.execute(f"UPDATE {table} SET round = 3 WHERE round = 2")
    seals.seal_rounds(db, 1)
    seals.seal_whole(db)
    assert seals._difference(db) == "round 2 is missing"
