"""The tables of a run in SQLite: one transaction a round, so that a kill leaves whole
rounds only.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal

from fedblocks.core.errors import RunFolderError, UserError
from fedblocks.runs.storage import seals
from fedblocks.runs.storage.contents import find_nonsense
from fedblocks.runs.storage.database import RESTORE, connect, fold, readable_errors
from fedblocks.runs.storage.environment import now
from fedblocks.runs.storage.main_metric import KEY, MainMetric
from fedblocks.runs.storage.record import Note, Part, RoundRecord, read_losses, tables_of
from fedblocks.runs.storage.summary import Reference, Summary, summarise

SUFFIXES = ("", "-wal", "-shm", "-journal")  # SQLite's own files beside the record's
VERSION = 2  # of the tables below, kept in SQLite's user_version
WITHOUT_SEALS = 1  # an earlier one, which `upgrade` makes the present one
TABLES = """
CREATE TABLE rounds (round INTEGER PRIMARY KEY, seconds REAL NOT NULL, clients INTEGER NOT NULL,
    bytes_down INTEGER NOT NULL, bytes_up INTEGER NOT NULL, started_at TEXT NOT NULL);
CREATE TABLE client_metrics (round INTEGER NOT NULL REFERENCES rounds ON DELETE CASCADE,
    part TEXT NOT NULL CHECK (part IN ('train', 'validation', 'test', 'unseen')),
    view TEXT NOT NULL, client INTEGER NOT NULL, correct REAL NOT NULL,
    examples REAL NOT NULL, loss REAL, extra TEXT NOT NULL,
    PRIMARY KEY (round, part, view, client)) WITHOUT ROWID;
CREATE TABLE means (round INTEGER NOT NULL REFERENCES rounds ON DELETE CASCADE,
    part TEXT NOT NULL, view TEXT NOT NULL, clients INTEGER NOT NULL, accuracy REAL NOT NULL,
    PRIMARY KEY (round, part, view)) WITHOUT ROWID;
CREATE TABLE traffic (round INTEGER NOT NULL REFERENCES rounds ON DELETE CASCADE,
    client INTEGER NOT NULL, block TEXT NOT NULL,
    direction TEXT NOT NULL CHECK (direction IN ('down', 'up')),
    bytes INTEGER NOT NULL, PRIMARY KEY (round, client, block, direction)) WITHOUT ROWID;
CREATE TABLE refusals (round INTEGER NOT NULL REFERENCES rounds ON DELETE CASCADE,
    client INTEGER NOT NULL, reason TEXT NOT NULL, detail TEXT NOT NULL);
CREATE TABLE snapshots (round INTEGER NOT NULL REFERENCES rounds ON DELETE CASCADE,
    name TEXT NOT NULL, client INTEGER NOT NULL, numbers TEXT NOT NULL,
    PRIMARY KEY (round, name, client)) WITHOUT ROWID;
CREATE TABLE notes (round INTEGER REFERENCES rounds ON DELETE CASCADE,
    time TEXT NOT NULL, level TEXT NOT NULL, text TEXT NOT NULL);
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""
SCHEMAS = {WITHOUT_SEALS: TABLES, VERSION: TABLES + seals.TABLE}


class RunStore:
    """The tables of one run; other processes may read while one writes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.witness: Callable[[int], object] = lambda round: None  # hears of recorded rounds
        with readable_errors(path):
            self._db = connect(path)
            self._version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if self._version == 0:  # SQLite's own default: a file without tables, such as an empty one
            raise RunFolderError(f"{path} is damaged, or not the record of a run", RESTORE)
        if self._version not in (WITHOUT_SEALS, VERSION):
            raise RunFolderError(f"{path} was written by a newer fedblocks", "update fedblocks")
        with readable_errors(path):
            is_record = seals.has_tables(self._db, SCHEMAS[self._version])
        if not is_record:
            problem = "its tables are not those of a record"
            raise RunFolderError(f"the record {path} is damaged: {problem}", RESTORE)

    @classmethod
    def create(cls, path: Path) -> RunStore:
        """A store without rounds; what stood at `path` is replaced."""
        with readable_errors(path):
            for suffix in SUFFIXES:
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            with closing(sqlite3.connect(path)) as db:
                db.execute("PRAGMA journal_mode = WAL")  # readers do not wait for the writer
                db.executescript(f"BEGIN; {SCHEMAS[VERSION]} PRAGMA user_version = {VERSION};")
                seals.seal_whole(db)
                db.execute("COMMIT")
        return cls(path)

    def close(self) -> None:
        """Close the file; SQLite then tidies its side files away."""
        self._db.close()

    def verify(self) -> None:
        """Refuse a damaged record: every row is read and compared with the checksum of
        its round, and with what runs write. A record of an earlier version has no checksums yet.
        """
        with readable_errors(self.path):
            self._db.execute("BEGIN")  # a writer beside us changes nothing in between
            problem = seals.damage(self._db) if self._version == VERSION else None
            problem = problem or find_nonsense(self._db)
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
        if problem is not None:
            raise RunFolderError(f"the record {self.path} is damaged: {problem}", RESTORE)

    def upgrade(self) -> None:
        """Give a record of an earlier version its checksums."""
        if self._version == WITHOUT_SEALS:
            with readable_errors(self.path), self._transaction():
                self._db.execute(seals.TABLE)
                self._db.execute(f"PRAGMA user_version = {VERSION}")
                seals.seal_rounds(self._db, 0)
                seals.seal_whole(self._db)
            self._version = VERSION

    def record_round(self, *records: RoundRecord) -> None:
        """Store a round, or several in a row, all or nothing, in place of these and
        later ones, which are redone.
        """
        by_round = [(record.round, tables_of(record)) for record in records]
        with self._transaction():
            # rows elsewhere go with it
            self._db.execute("DELETE FROM rounds WHERE round >= ?", (records[0].round,))
            for table in by_round[0][1]:
                self._insert(
                    table, ((round, *row) for round, tables in by_round for row in tables[table])
                )
            seals.seal_rounds(self._db, records[0].round)
        self.witness(records[-1].round)

    def drop_evaluation(self, round: int) -> None:
        """Forget how the models did in a round, as if they had not been tried."""
        with self._transaction():
            for table in ("client_metrics", "means", "snapshots"):
                self._db.execute(f"DELETE FROM {table} WHERE round = ?", (round,))
            seals.seal_rounds(self._db, round)

    def note(self, text: str, level: Literal["info", "warning"] = "info") -> None:
        """Add a note about the run as a whole; it stays when rounds are redone."""
        self.write_facts({}, [Note(text, level)])

    def set_meta(self, key: str, value: str) -> None:
        """Remember a fact about the run, such as its status."""
        self.write_facts({key: value})

    def write_facts(self, facts: Mapping[str, str], notes: Sequence[Note] = ()) -> None:
        """Remember facts and notes about the run, in one transaction: each waits for the disk."""
        with self._transaction():
            sql = "INSERT OR REPLACE INTO meta VALUES (?, ?)"
            self._db.executemany(sql, list(facts.items()))
            self._insert("notes", [(None, now(), note.level, note.text) for note in notes])
            seals.seal_whole(self._db)

    def meta(self, key: str) -> str | None:
        """A fact that `set_meta` stored."""
        value: str | None = self._first("SELECT value FROM meta WHERE key = ?", key)
        return value

    def last_round(self) -> int | None:
        """The number of the last round on record."""
        round: int | None = self._first("SELECT MAX(round) FROM rounds")
        return round

    def best_round(self, part: Part = "validation", view: str = "personal") -> int | None:
        """The round with the best mean of the main metric over clients, the first among
        equals, of those that scored the most clients; never chosen on test data.
        """
        if part not in ("validation", "train"):
            fix = 'choose it on "validation" and report the test accuracy of that round'
            raise UserError(
                f"the best round is never chosen on {part} data: that would flatter the run", fix
            )
        order = "DESC" if self.metric().better == "higher" else "ASC"
        best = "SELECT round FROM means WHERE part = ? AND view = ? ORDER BY clients DESC"
        round: int | None = self._first(f"{best}, accuracy {order}, round", part, view)
        return round

    def metrics(self, part: Part, view: str, round: int | None = None) -> list[dict[str, Any]]:
        """One dict for each evaluated client, of all rounds or of one, in the order of
        rounds and clients.
        """
        query = """SELECT round, client, correct, examples, loss, extra FROM client_metrics
            WHERE round BETWEEN ? AND ? AND part = ? AND view = ? ORDER BY round, client"""
        rows = self.rows(query, *((0, 2**62) if round is None else (round, round)), part, view)
        read_losses(rows)
        for row in rows:
            row["extra"] = json.loads(row["extra"])
        return rows

    def metric(self, name: str | None = None) -> MainMetric:
        """The metric by which the run is compared with others, or another one that it has."""
        return MainMetric.read(self.meta(KEY)).chosen(name)

    def scores(
        self, round: int, part: Part, view: str, metric: str | None = None
    ) -> dict[int, float]:
        """A metric, by default the main one, of every client that has it; also the `reference`
        for another run's summary.
        """
        main = self.metric(metric)
        values = {row["client"]: main.of_row(row) for row in self.metrics(part, view, round)}
        return {client: value for client, value in values.items() if value is not None}

    def summary(
        self,
        round: int,
        part: Part,
        view: str,
        reference: Reference | None = None,
        metric: str | None = None,
    ) -> Summary:
        """One evaluation in a few numbers; `summarise` says what each one is."""
        rows = self.metrics(part, view, round)
        main = self.metric(metric)
        if not rows:
            raise UserError(
                f"round {round} has no {part} evaluation of the {view} model",
                "choose an evaluated round",
            )
        return summarise(rows, reference, main)

    def rows(self, query: str, *values: Any) -> list[dict[str, Any]]:
        """The rows that a query finds; the tables stand at the top of this file."""
        with readable_errors(self.path):
            cursor = self._db.execute(query, values)
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row)) for row in cursor]

    def _first(self, query: str, *values: Any) -> Any:
        rows = self.rows(f"{query} LIMIT 1", *values)
        return next(iter(rows[0].values())) if rows else None

    def _insert(self, table: str, rows: Iterable[Sequence[Any]]) -> None:
        marks = ", ".join(
            "?" for _ in self._db.execute(f"SELECT * FROM {table} LIMIT 0").description
        )
        self._db.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with readable_errors(self.path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:  # Ctrl-C too
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
            fold(self._db)
