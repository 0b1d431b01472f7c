"""Names and sizes of a run's clients, kept in its record, so that tables of clients
need no data.
"""

from __future__ import annotations

import json
from typing import Any

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
