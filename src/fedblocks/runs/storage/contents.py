"""What the rows of a record may hold: SQLite keeps anything in any column, and whoever made a
record may have sealed it.
"""

from __future__ import annotations

import sqlite3
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from fedblocks.runs.storage.main_metric import KEY, Better
from fedblocks.runs.storage.record import LANES, Part

LARGEST = 2**53  # whole numbers are smaller: they have a place in JSON
Count: TypeAlias = Annotated[int, Field(ge=0, le=LARGEST)]
TEXT = "typeof({0}) = 'text'"
WHOLE = f"typeof({{0}}) = 'integer' AND {{0}} BETWEEN 0 AND {LARGEST}"
REAL = "typeof({0}) = 'real'"
AMOUNT = f"{REAL} AND {{0}} BETWEEN 0 AND 1e300"
OR_NOTHING = "({0} IS NULL OR {1})"
BY_CLIENT = {"round": WHOLE, "client": WHOLE}
COLUMNS: dict[str, dict[str, str]] = {
    "rounds": {
        **{"round": WHOLE, "seconds": AMOUNT, "clients": WHOLE},
        **{"bytes_down": WHOLE, "bytes_up": WHOLE, "started_at": TEXT},
    },
    "client_metrics": {
        **BY_CLIENT,
        **{"part": TEXT, "view": TEXT, "correct": AMOUNT, "examples": AMOUNT},
        **{"loss": OR_NOTHING.format("{0}", REAL), "extra": TEXT},
    },
    "means": {"round": WHOLE, "part": TEXT, "view": TEXT, "clients": WHOLE, "accuracy": REAL},
    "traffic": {**BY_CLIENT, "block": TEXT, "direction": TEXT, "bytes": WHOLE},
    "refusals": {**BY_CLIENT, "reason": TEXT, "detail": TEXT},
    "snapshots": {**BY_CLIENT, "name": TEXT, "numbers": TEXT},
    "notes": {
        "round": OR_NOTHING.format("{0}", WHOLE),
        **{"time": TEXT, "level": TEXT, "text": TEXT},
    },
    "meta": {"key": TEXT, "value": TEXT},
}


class _Metrics(BaseModel):
    """The metrics of a run, as `MainMetric.text` writes them."""

    model_config = ConfigDict(extra="forbid")

    name: str
    better: Better
    others: dict[str, Better]


class _Clients(BaseModel):
    """Names and numbers of rows, as `clients_text` writes them."""

    model_config = ConfigDict(extra="forbid")

    names: list[str] = []
    rows: dict[Part, list[Count]] = {}

    @model_validator(mode="after")
    def _have_one_length(self) -> _Clients:
        if any(len(sizes) != len(self.names) for sizes in self.rows.values()):
            raise ValueError("there are not as many numbers as names")
        if self.names and "train" not in self.rows:
            raise ValueError("there are names and no training rows")
        return self


# facts that are read as more than text, by the names that their writers give them
FACTS: dict[str, TypeAdapter[Any]] = {
    KEY: TypeAdapter(_Metrics),
    "clients": TypeAdapter(_Clients),
    LANES: TypeAdapter(Annotated[int, Field(ge=1)]),
    "config": TypeAdapter(dict[str, Any]),
    "frozen": TypeAdapter(dict[str, str]),
    "claims": TypeAdapter(dict[Annotated[str, Field(pattern="^[0-9]{1,9}$")], Count]),
    "exit-code": TypeAdapter(Annotated[int, Field(ge=0, le=255)]),
    "patience-since": TypeAdapter(Count),
}
TEXTS: dict[str, tuple[str, TypeAdapter[Any]]] = {  # columns with JSON, by their table
    "client_metrics": ("extra", TypeAdapter(dict[str, float | None])),
    "snapshots": ("numbers", TypeAdapter(list[float])),
}


def find_nonsense(db: sqlite3.Connection) -> str | None:
    """Return where a record holds what no run writes, if it does."""
    if db.execute("PRAGMA foreign_key_check").fetchone():
        return "it has rows of rounds that are not there"
    for table, columns in COLUMNS.items():
        for column, rule in columns.items():
            wrong = f"SELECT 1 FROM {table} WHERE NOT ({rule.format(column)}) LIMIT 1"
            if db.execute(wrong).fetchone():
                return f"column {column} of {table} holds what no run writes"
    for table, (column, kind) in TEXTS.items():
        for (text,) in db.execute(f"SELECT DISTINCT {column} FROM {table}"):
            if not _fits(text, kind):
                return f"column {column} of {table} holds what no run writes"
    facts = db.execute("SELECT key, value FROM meta")
    wrong_facts = [key for key, value in facts if key in FACTS and not _fits(value, FACTS[key])]
    return f'the fact "{wrong_facts[0]}" is not as a run writes it' if wrong_facts else None


def _fits(text: str, kind: TypeAdapter[Any]) -> bool:
    try:
        kind.validate_json(text, strict=True)
    except ValidationError:
        return False
    return True
