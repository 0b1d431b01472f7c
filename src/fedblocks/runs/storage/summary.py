"""An evaluation of all clients in a few numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from fedblocks.core.errors import UserError

Reference: TypeAlias = Mapping[int, float]  # client -> its accuracy in another run
Summary: TypeAlias = dict[str, float | None]


def summarise(rows: Sequence[Mapping[str, Any]], reference: Reference | None) -> Summary:
    """Accuracy over the clients that have examples, in numbers that do not depend on the order of
    the rows.

    mean: every client counts the same. weighted: every example counts the same. bottom_decile: the
    accuracy that a tenth of the clients stay below, `sorted(accuracies)[clients // 10]`. worst: the
    lowest. std: over clients, dividing by their number. loss: mean over examples.
    share_below_reference: share of clients strictly below their own accuracy in the reference.
    """
    rows = [row for row in rows if row["examples"] > 0]
    accuracy = {row["client"]: row["correct"] / row["examples"] for row in rows}
    examples = math.fsum(row["examples"] for row in rows)
    ranked = sorted(accuracy.values())
    mean = math.fsum(ranked) / len(ranked)
    return {
        "clients": len(ranked),
        "examples": examples,
        "mean": mean,
        "weighted": math.fsum(row["correct"] for row in rows) / examples,
        "bottom_decile": ranked[len(ranked) // 10],
        "worst": ranked[0],
        "std": math.sqrt(math.fsum((value - mean) ** 2 for value in ranked) / len(ranked)),
        "loss": math.fsum(row["loss"] * row["examples"] for row in rows) / examples,
        "share_below_reference": None if reference is None else _share_below(accuracy, reference),
    }


def _share_below(accuracy: Mapping[int, float], reference: Reference) -> float:
    missing = sorted(accuracy.keys() - reference.keys())
    if missing:
        message = (
            f"the reference run lacks {len(missing)} of {len(accuracy)} clients, such as "
            f"client {missing[0]}"
        )
        raise UserError(
            message, "compare runs on the same federation and the same part of the data"
        )
    return sum(value < reference[client] for client, value in accuracy.items()) / len(accuracy)
