"""What a run folder says of every client, to compare two ways of carrying out a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedblocks.runs.storage.folder import RunFolder


def scores(path: Path) -> dict[Any, Any]:
    """Correct labels and loss by round, part, view and client."""
    query = "SELECT round, part, view, client, correct, loss FROM client_metrics"
    with RunFolder.open(path) as folder:
        return {
            tuple(row.values())[:4]: (row["correct"], row["loss"])
            for row in folder.store.rows(query)
        }
