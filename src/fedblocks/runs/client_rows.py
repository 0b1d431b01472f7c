"""What a record has of each client in one evaluation, as a table."""

from __future__ import annotations

import json
from typing import Any

from fedblocks.runs.clients import clients_from
from fedblocks.runs.curves import column_of
from fedblocks.runs.storage.store import RunStore


def client_rows(store: RunStore, round: int | None) -> list[dict[str, Any]]:
    """A row for each client: number, name, training rows, and its metrics in every part and model;
    None where it has no such rows.
    """
    known = clients_from(store.meta("clients"))
    rows = store.rows(
        "SELECT client, part, view, correct, examples, extra FROM client_metrics WHERE "
        "round = ? AND examples > 0 ORDER BY client, part, view",
        round,
    )
    metric = store.metric()
    table: dict[int, dict[str, Any]] = {c: {"client": c, **own} for c, own in known.items()}
    for row in rows:
        own = table.setdefault(row["client"], {"client": row["client"]})
        row["extra"] = json.loads(row["extra"])
        own[column_of(row["part"], row["view"])] = metric.of_row(row)
        for name in metric.others:
            own[f"{column_of(row['part'], row['view'])} {name}"] = row["extra"].get(name)
    columns = dict.fromkeys(column for own in table.values() for column in own)
    return [{**dict.fromkeys(columns), **table[client]} for client in sorted(table)]
