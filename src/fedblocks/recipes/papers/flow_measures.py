"""What is read off a run on texts: the three scores of words, and the mean over the last rounds."""

from __future__ import annotations

import math
from typing import Any

from fedblocks.runs.result import RunResult
from fedblocks.runs.storage.folder import RunFolder
from fedblocks.runs.storage.record import Part


def word_accuracy(run: RunResult, part: Part) -> dict[str, Any]:
    """Percent of the next words, the mean over clients in the last evaluation; also
    without OOV words, and EOS.
    """
    scores = {
        "value": "personal",
        "without_oov": "personal_without_oov",
        "without_oov_and_eos": "personal_without_oov_and_eos",
    }
    return {score: 100 * (run.summary(part, view)["mean"] or 0.0) for score, view in scores.items()}


def late_validation_accuracy(run: RunResult, part: Part, rounds: int = 100) -> dict[str, Any]:
    """Percent on validation data, the mean over clients and over the evaluations of the
    last rounds, and its curve.
    """
    with RunFolder.open(run.folder) as folder:
        query = (
            "SELECT round, accuracy FROM means "
            "WHERE part = 'validation' AND view = 'personal' ORDER BY round"
        )
        rows = folder.store.rows(query)
        last = folder.store.last_round() or 0
    late = [row["accuracy"] for row in rows if row["round"] > last - rounds]
    curve = {
        "rounds": [row["round"] for row in rows],
        "accuracy": [100 * row["accuracy"] for row in rows],
    }
    return {"value": 100 * math.fsum(late) / len(late), **curve}
