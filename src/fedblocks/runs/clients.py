"""Names and sizes of a run's clients, kept in its record, so that tables of clients
need no data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fedblocks.core.errors import count_of
from fedblocks.data.federation import Federation

MOST = 100_000  # clients whose names are kept; with more, clients have numbers only


def clients_text(data: Federation) -> str:
    """Name and rows of every client in each part, as JSON."""
    if data.clients > MOST:
        return "{}"
    sizes = {part: rows.sizes.tolist() for part, rows in data.parts.items()}
    return json.dumps({"names": [str(name) for name in data.names], "rows": sizes})


def clients_from(text: str | None) -> dict[int, dict[str, Any]]:
    """Client -> its name and the size of its training data, where the record has them."""
    kept = json.loads(text or "{}")
    rows = kept.get("rows", {}).get("train", [])
    return {
        client: {"name": name, "size": rows[client]}
        for client, name in enumerate(kept.get("names", []))
    }


def remarks_on_part(
    text: str | None, part: str, rows: Sequence[Mapping[str, Any]]
) -> tuple[str, str]:
    """How many clients have no rows in a part, and how many no target to score; `rows` are those
    of an evaluation.
    """
    return remark_on_rows(text, part), _remark_on_targets(text, part, rows)


def _remark_on_targets(text: str | None, part: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """How many clients have rows in a part and no target that could be scored."""
    sizes = json.loads(text or "{}").get("rows", {}).get(part, [])
    evaluated = [row for row in rows if row["client"] < len(sizes) and sizes[row["client"]]]
    without = sum(row["examples"] == 0 for row in evaluated)
    if not without:
        return ""
    who = f"{without} of {count_of(len(evaluated), 'client')} with {part} rows"
    verb = "has" if without == 1 else "have"
    return f"{who} {verb} no known target in them, and {verb} no score"


def remark_on_rows(text: str | None, part: str) -> str:
    """How many clients have no rows in a part, where the record has sizes; nothing: all have some.

    Clients without any rows at all hold none of the data here.
    """
    rows = json.loads(text or "{}").get("rows", {})
    held = [sum(sizes) for sizes in zip(*rows.values(), strict=True)]
    clients = sum(size > 0 for size in held)
    without = sum(
        size > 0 and own == 0 for size, own in zip(held, rows.get(part, []), strict=False)
    )
    if not without:
        return ""
    who = "no client has" if without == clients else f"{without} of {clients} clients have no"
    return f"{who} {part} rows"
