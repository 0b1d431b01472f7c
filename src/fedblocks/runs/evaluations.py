"""An evaluation with everything in hand, for listeners."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedblocks.core.state import State
from fedblocks.engines.round import Experiment
from fedblocks.runs.build import Prepared
from fedblocks.runs.rounds import is_due
from fedblocks.runs.storage.main_metric import MainMetric
from fedblocks.runs.storage.record import ClientMetric, RoundRecord


@dataclass(frozen=True, eq=False)
class EvaluationDone:
    """How the models of all clients do after a round, and what they are."""

    round: int
    rounds: int  # in all
    # after the round, not to be changed; with several ranks, private blocks of the first's clients
    state: State
    experiment: Experiment  # methods and data
    metric: MainMetric  # by which runs are compared
    metrics: Sequence[ClientMetric]  # a row for each part, model and client

    def scores(
        self, part: str = "validation", metric: str | None = None, view: str = "personal"
    ) -> dict[int, float]:
        """Client -> a metric of its model on a part of its data (default: the main metric);
        clients without examples there are left out.
        """
        chosen = self.metric.chosen(metric)
        own = [row for row in self.metrics if row.part == part and row.view == view]
        values = {row.client: chosen.of_row(row._asdict()) for row in own}
        return {client: value for client, value in values.items() if value is not None}

    def mean(
        self, part: str = "validation", metric: str | None = None, view: str = "personal"
    ) -> float | None:
        """The mean of `scores`; none without any."""
        values = self.scores(part, metric, view).values()
        return sum(values) / len(values) if values else None


OnEvaluation = Callable[[EvaluationDone], None]


def tell_of_evaluation(
    on_evaluation: OnEvaluation | None, prepared: Prepared, state: State, record: RoundRecord
) -> None:
    """Tell a listener of a round, if there is one and models were tried after it."""
    if on_evaluation is None or not is_due(prepared, record.round - 1):
        return
    metric = MainMetric.of(prepared.experiment.data.task)
    rounds = prepared.config.rounds
    on_evaluation(
        EvaluationDone(
            record.round, rounds, state, prepared.experiment, metric, list(record.metrics)
        )
    )
