"""How long rounds take in a process that is warm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from fedblocks.runs.storage.store import RunStore

WARM = (
    "Seconds are those of typical rounds, evaluations included; compilation and warm-up are "
    "left out."
)


def warm_seconds(store: RunStore) -> dict[int, float]:
    """Round -> the median seconds of rounds of its kind, with an evaluation or without.

    The first of a kind compiles and warms up, and has no share in the median unless it is the only
    one. So have the first rounds after a stop, as long as they are few.
    """
    rounds = store.rows("SELECT round, seconds FROM rounds ORDER BY round")
    evaluated = {row["round"] for row in store.rows("SELECT DISTINCT round FROM means")}
    kinds: dict[bool, list[float]] = {}
    for row in rounds:
        kinds.setdefault(row["round"] in evaluated, []).append(row["seconds"])
    typical = {kind: median(own[1:] or own) for kind, own in kinds.items()}
    return {row["round"]: typical[row["round"] in evaluated] for row in rounds}


def describe_seconds(rows: Sequence[Mapping[str, Any]]) -> str:
    """What the seconds of a leaderboard are, and whether its rows can be compared in them."""
    shared = {row["name"]: row["lanes"] for row in rows}
    if len(set(shared.values())) < 2:
        return WARM
    counts = ", ".join(f"{name}: {lanes:g}" for name, lanes in shared.items())
    return (
        f"{WARM} They cannot be compared between these methods: runs that are done together "
        f"share their time, and not equally many were ({counts})."
    )
