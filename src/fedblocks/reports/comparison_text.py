"""The leaderboard of a comparison: the order of its rows, and the rows as text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

# of a printed comparison; those about Local or FedAvg only where they are among the methods
COLUMNS = (
    *("name", "seeds", "mean", "bottom_decile", "worst", "below_local", "to_local", "to_fedavg"),
    *("megabytes", "seconds"),
)


def rank_of(sign: int, row: Mapping[str, Any]) -> tuple[bool, float]:
    """The place of a row, the best first; `sign`: -1 where less is better. Undefined means are
    last.
    """
    mean = math.nan if row["mean"] is None else float(row["mean"])
    return math.isnan(mean), -sign * mean


def shown_cells(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What is printed of the rows of a leaderboard."""
    columns = [key for key in COLUMNS if any(row[key] is not None for row in rows)]
    return [{key: _cell(row, key) for key in columns} for row in rows]


def difference_text(interval: Mapping[str, float] | None, verdict: str | None) -> str:
    """A difference with its interval and, where there are seeds enough, what it says."""
    if interval is None:
        return "-"
    text = "{mean:+.3f} [{low:+.3f}, {high:+.3f}]".format(**interval)
    return f"{text} {verdict}" if verdict is not None else text


def _cell(row: Mapping[str, Any], key: str) -> Any:
    if key in ("to_local", "to_fedavg"):
        return difference_text(row[key], row[key.replace("to_", "against_")])
    return row[key]
