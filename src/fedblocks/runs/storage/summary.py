"""An evaluation of all clients in a few numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from fedblocks.core.errors import UserError
from fedblocks.runs.storage.main_metric import MainMetric

# client -> its main metric in another run; NaN: it was refused there, and is not compared
Reference: TypeAlias = Mapping[int, float]
Summary: TypeAlias = dict[str, float | None]
NAMES = ("mean", "weighted", "bottom_decile", "worst", "std", "loss")
UNDEFINED = dict.fromkeys(NAMES, math.nan)


def summarise(
    rows: Sequence[Mapping[str, Any]],
    reference: Reference | None,
    metric: MainMetric = MainMetric(),  # noqa: B008 - frozen
) -> Summary:
    """A metric, the accuracy by default, over the clients that have it, in numbers that do not
    depend on the order of the rows.

    examples: the targets that were scored, of which an example of a sequence or of several numbers
    has more than one. mean: every client counts the same. weighted: every such target counts the
    same. bottom_decile: the value that a tenth of the clients do worse than, the one at `clients //
    10` from the worst on. worst: that of the client who does worst. std: over clients, dividing by
    their number. loss: mean over targets. share_below_reference: share of clients that do strictly
    worse than in the reference. Where no client has the metric, the numbers are NaN.
    """
    values = {row["client"]: metric.of_row(row) for row in rows}
    if all(value is None for value in values.values()):
        scored = math.fsum(row["examples"] for row in rows)
        return {"clients": 0, "examples": scored, **UNDEFINED, "share_below_reference": None}
    rows = [row for row in rows if values[row["client"]] is not None]
    score = {row["client"]: metric.of_row(row) or 0.0 for row in rows}
    examples = math.fsum(row["examples"] for row in rows)
    ranked = sorted(score.values(), key=lambda value: metric.sign * value)
    mean = math.fsum(ranked) / len(ranked)
    return {
        "clients": len(ranked),
        "examples": examples,
        "mean": mean,
        "weighted": math.fsum(_weigh(row, score, metric) for row in rows) / examples,
        "bottom_decile": ranked[len(ranked) // 10],
        "worst": ranked[0],
        "std": math.sqrt(math.fsum((value - mean) ** 2 for value in ranked) / len(ranked)),
        "loss": math.fsum(row["loss"] * row["examples"] for row in rows) / examples,
        "share_below_reference": None
        if reference is None
        else _share_worse(score, reference, metric),
    }


def remark_on_metric(
    numbers: Mapping[str, float | None], metric: MainMetric, rows: Sequence[Mapping[str, Any]]
) -> str:
    """A sentence where clients lack a metric though their targets were scored; else nothing."""
    has = int(numbers["clients"] or 0)
    if not has:
        return f"{metric.name} is undefined (NaN) for every client"
    scored = sum(row["examples"] > 0 for row in rows)
    if has == scored:
        return ""
    who = f"{scored - has} of {scored} clients"
    return f"{metric.name} is undefined (NaN) for {who}, and the means leave them out"


def _weigh(row: Mapping[str, Any], score: Mapping[int, float], metric: MainMetric) -> float:
    if metric.name == "accuracy":
        return float(row["correct"])
    return float(score[row["client"]] * row["examples"])


def _share_worse(score: Mapping[int, float], reference: Reference, metric: MainMetric) -> float:
    missing = sorted(score.keys() - reference.keys())
    if missing:
        message = (
            f"the reference run lacks {len(missing)} of {len(score)} clients, such as "
            f"client {missing[0]}"
        )
        raise UserError(
            message, "compare runs on the same federation and the same part of the data"
        )
    both = {client: value for client, value in score.items() if not math.isnan(reference[client])}
    worse = [metric.sign * (value - reference[client]) < 0 for client, value in both.items()]
    return sum(worse) / len(both) if both else math.nan
