"""A checksum of every round, and of what is noted about the run as a whole: SQLite
itself does not notice a number that was changed on the disk.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import cache
from hashlib import sha256
from itertools import pairwise
from typing import Any, Protocol

TABLE = "CREATE TABLE seals (round INTEGER PRIMARY KEY REFERENCES rounds ON DELETE CASCADE,\n"
TABLE += "    sha256 TEXT NOT NULL);\n"
# the tables with rows of rounds, and the columns that say where in its table a row stands
SEALED = {
    "rounds": "round",
    "client_metrics": "round, part, view, client",
    "means": "round, part, view",
    "traffic": "round, client, block, direction",
    "refusals": "rowid",
    "snapshots": "round, name, client",
    "notes": "rowid",
}
KEY = "seal"  # of the facts and notes that belong to no round, among the facts


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...


def seal_rounds(db: sqlite3.Connection, first: int) -> None:
    """Write the checksums of a round and of all later ones."""
    rows = [(round, text) for round, text in _digests(db, first).items()]
    db.executemany("INSERT OR REPLACE INTO seals VALUES (?, ?)", rows)


def seal_whole(db: sqlite3.Connection) -> None:
    """Write the checksum of the facts and notes that belong to no round."""
    db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (KEY, _digest_of_whole(db)))


def has_tables(db: sqlite3.Connection, schema: str) -> bool:
    """Whether a file has these tables, and nothing else: a stranger's could have a view of rows
    without end in the place of one.
    """
    return _schema(db) == _schema_of(schema)


def damage(db: sqlite3.Connection) -> str | None:
    """Return what is wrong with a record, if anything is; all its rows are read."""
    try:
        (state,) = db.execute("PRAGMA quick_check(1)").fetchone()
        return f"SQLite says: {state}" if state != "ok" else _difference(db)
    except (sqlite3.DatabaseError, OverflowError, UnicodeDecodeError) as error:
        return str(error)


def _difference(db: sqlite3.Connection) -> str | None:
    seals = dict(db.execute("SELECT round, sha256 FROM seals ORDER BY round"))
    digests = _digests(db, None)
    for round in sorted(seals.keys() | digests.keys()):
        if seals.get(round) != digests.get(round):
            return f"round {round} differs from its checksum"
    for before, after in pairwise((0, *seals)):
        if after != before + 1:
            return f"round {before + 1} is missing"
    stored = db.execute("SELECT value FROM meta WHERE key = ?", (KEY,)).fetchone()
    if stored is None or stored[0] != _digest_of_whole(db):
        return "the facts and notes about the run differ from their checksum"
    return None


def _digests(db: sqlite3.Connection, first: int | None) -> dict[int, str]:
    """The checksum of each round from one on, or of all."""
    hashes: dict[int, Any] = {}
    where = "round IS NOT NULL" if first is None else f"round >= {int(first)}"
    for table, place in SEALED.items():
        columns = f"{place}, *" if place == "rowid" else "*"
        for row in db.execute(
            f"SELECT round, {columns} FROM {table} WHERE {where} ORDER BY {place}"
        ):
            _add(hashes.setdefault(row[0], sha256()), table, row)
    return {round: one.hexdigest() for round, one in hashes.items()}


def _digest_of_whole(db: sqlite3.Connection) -> str:
    whole = sha256()
    for row in db.execute("SELECT * FROM meta WHERE key != ? ORDER BY key", (KEY,)):
        _add(whole, "meta", row)
    for row in db.execute("SELECT rowid, * FROM notes WHERE round IS NULL ORDER BY rowid"):
        _add(whole, "notes", row)
    return whole.hexdigest()


def _add(digest: _Hash, table: str, row: tuple[Any, ...]) -> None:
    digest.update(f"{table}{row!r}\n".encode("utf-8", "surrogatepass"))


@cache
def _schema_of(script: str) -> list[Any]:
    with closing(sqlite3.connect(":memory:")) as whole:
        whole.executescript(script)
        return _schema(whole)


def _schema(db: sqlite3.Connection) -> list[Any]:
    return db.execute(
        "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name"
    ).fetchall()
