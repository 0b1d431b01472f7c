"""Where a default run ends below both Local and FedAvg: what the pages of methods and `fedblocks
methods` say of it, from a file that docs/generate.py writes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DEFAULT_RUNS = Path(__file__).with_name("default_runs.json")


def read_default_runs() -> dict[str, Any]:
    """For each method the beds it was compared on, those where it was below both, and the fewest
    seeds that it has on a bed.
    """
    whole: dict[str, Any] = json.loads(DEFAULT_RUNS.read_text(encoding="utf-8"))
    return whole


def sentence_about(name: str, runs: Mapping[str, Any]) -> str:
    """What default runs of a method gave; nothing if it was not compared."""
    own = runs["methods"].get(name)
    if own is None or not own["compared"]:
        return ""
    below, beds, seeds = own["below_both"], own["compared"], own["seeds"]
    where = f" ({', '.join(below)})" if below else ""
    count = len(below) if below else "none"
    return (
        f"With its defaults it ends below both Local and FedAvg on {count} of {len(beds)} test-beds"
        f"{where}, {seeds} seed{'s' if seeds > 1 else ''}."
    )
