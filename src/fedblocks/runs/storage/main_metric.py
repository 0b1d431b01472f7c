"""The metric by which runs are compared: which it is, which way is better, what a client's is."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from fedblocks.core.errors import UserError, nearest
from fedblocks.core.task import Task

KEY = "metrics"  # under which the record of a run keeps them
SCORE = "score"  # under which a client's row keeps its main metric, if that is not the accuracy
Better = Literal["higher", "lower"]


@dataclass(frozen=True)
class MainMetric:
    """The main metric of a run, and all others that it has."""

    name: str = "accuracy"
    better: Better = "higher"
    others: Mapping[str, Better] = field(default_factory=dict)

    @staticmethod
    def of(task: Task) -> MainMetric:
        main, *others = task.all_metrics
        return MainMetric(main.name, main.better, {m.name: m.better for m in others})

    @staticmethod
    def read(text: str | None) -> MainMetric:
        """What `text` wrote; a record of before has the accuracy alone."""
        return MainMetric() if text is None else MainMetric(**json.loads(text))

    def text(self) -> str:
        return json.dumps({"name": self.name, "better": self.better, "others": {**self.others}})

    def chosen(self, name: str | None) -> MainMetric:
        """This metric, or another one of the same run in its place."""
        if name is None or name == self.name:
            return self
        known: dict[str, Better] = {**self.others, "loss": "lower"}
        if name not in known:
            raise UserError(f'the run has no metric "{name}"', nearest(name, {self.name, *known}))
        return MainMetric(name, known[name])

    @property
    def sign(self) -> int:
        """1 if more is better, else -1: what a value is multiplied with to be ranked."""
        return 1 if self.better == "higher" else -1

    def show(self, value: float) -> str:
        """A value as people read it."""
        return f"{value:.1%}" if self.name == "accuracy" else f"{value:.4g}"

    def of_row(self, row: Mapping[str, Any]) -> float | None:
        """A client's value in a row of `client_metrics`; none where it is not defined."""
        if row["examples"] <= 0:
            return None
        extra = row.get("extra") or {}
        if self.name == "loss":
            value = row["loss"]
        elif self.name in extra:
            value = extra[self.name]
        else:
            value = row["correct"] / row["examples"] if self.name == "accuracy" else None
        return None if value is None or math.isnan(value) else float(value)


def score_of(row: Mapping[str, Any]) -> float | None:
    """A client's main metric, whichever that is; none where it is not defined."""
    extra = row.get("extra") or {}
    if SCORE in extra:
        value: float | None = extra[SCORE] if row["examples"] > 0 else None
        return value
    return MainMetric().of_row(row)


def extra_of(task: Task, counts: tuple[float, ...]) -> dict[str, float | None] | None:
    """What a client's row keeps besides right labels, scored labels and loss: nothing where
    accuracy is all that is asked.
    """
    if task.counts_alone:
        return None
    values = {name: _or_none(value) for name, value in task.values(counts).items()}
    main = {} if task.main.name == "accuracy" else {SCORE: values[task.main.name]}
    return {**main, **values}


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value
