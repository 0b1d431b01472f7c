"""The metrics of a run over its rounds, in the mean over clients."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

from fedblocks.runs.storage.store import RunStore

# as `read_losses` says: where others have a loss, NULL is endless, as 9e999 is here
MEAN_LOSS = "CASE COUNT(loss) WHEN 0 THEN NULL ELSE AVG(COALESCE(loss, 9e999)) END"
LOSSES = (
    f"SELECT round, part, view, {MEAN_LOSS} AS mean FROM client_metrics "
    "WHERE examples > 0 GROUP BY round, part, view ORDER BY round, part, view"
)


def column_of(part: str, view: str) -> str:
    """The name of a column: the part of the data, and which model, if not the personal one."""
    return part if view == "personal" else f"{part} ({view})"


def curves_of(store: RunStore, metric: str | None = None) -> list[dict[str, Any]]:
    """A row for each evaluated round with a column for every part and model."""
    if metric is None or metric == store.metric().name:
        query = "SELECT round, part, view, accuracy AS mean FROM means ORDER BY round, part, view"
        means = store.rows(query)
    elif metric == "loss":
        means = store.rows(LOSSES)
    else:
        means = _means_of(store, metric)
    table: dict[int, dict[str, Any]] = {}
    for row in means:
        own = table.setdefault(row["round"], {"round": row["round"]})
        own[column_of(row["part"], row["view"])] = row["mean"]
    return list(table.values())


def _means_of(store: RunStore, metric: str) -> list[dict[str, Any]]:
    chosen = store.metric(metric)
    by_key: dict[tuple[int, str, str], list[float]] = defaultdict(list)
    query = "SELECT round, part, view, correct, examples, loss, extra FROM client_metrics"
    for row in store.rows(f"{query} ORDER BY round, part, view, client"):
        value = chosen.of_row({**row, "extra": json.loads(row["extra"])})
        if value is not None:
            by_key[row["round"], row["part"], row["view"]].append(value)
    return [
        {"round": round, "part": part, "view": view, "mean": sum(values) / len(values)}
        for (round, part, view), values in by_key.items()
    ]
