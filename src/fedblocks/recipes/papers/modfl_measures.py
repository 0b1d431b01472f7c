"""What is read off a run of several data sets side by side: the accuracy on one of them."""

from __future__ import annotations

from typing import Any

from fedblocks.runs.result import RunResult
from fedblocks.runs.storage.folder import RunFolder
from fedblocks.runs.storage.record import Part


def side_accuracy(run: RunResult, part: Part, side: int = 0, sides: int = 1) -> dict[str, Any]:
    """Percent of the examples of one data set out of several, in the last evaluation;
    every example counts the same.
    """
    return {"value": side_curve(run, part, side, sides)["value"]}


def side_curve(run: RunResult, part: Part, side: int = 0, sides: int = 1) -> dict[str, Any]:
    """The same in every evaluation, and the last; clients stand data set by data set,
    as many of each.
    """
    with RunFolder.open(run.folder) as folder:
        rows = folder.store.metrics(part, "personal")
    each = (max(row["client"] for row in rows) + 1) // sides  # clients of a data set
    counts: dict[int, tuple[float, float]] = {}
    for row in rows:
        if row["client"] // each == side:
            right, all_of_them = counts.get(row["round"], (0.0, 0.0))
            counts[row["round"]] = right + row["correct"], all_of_them + row["examples"]
    accuracy = [100 * right / max(examples, 1) for right, examples in counts.values()]
    return {"value": accuracy[-1], "rounds": list(counts), "accuracy": accuracy}
