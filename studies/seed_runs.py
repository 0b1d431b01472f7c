"""What studies have in common: one method with several seeds, as lanes of one stack."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedblocks.core.method import Method
from fedblocks.core.state import State
from fedblocks.data.federation import Federation
from fedblocks.engines.lanes.lanes import Lanes
from fedblocks.engines.round import Evaluation, Experiment
from fedblocks.engines.vectorised import Vectorised

PARTS = ("validation", "test")


@dataclass(frozen=True, eq=False)
class SeedRuns:
    """How the runs of some seeds ended, in the order of the seeds."""

    experiments: Sequence[Experiment]
    states: Sequence[State]
    ends: Sequence[Evaluation]
    seconds: int  # of one core, all seeds together

    def accuracies(self, part: str) -> list[list[float]]:
        """Of the personal models: [seeds][clients]."""
        counts = [end.scores[part]["personal"] for end in self.ends]
        return [[round(own[c][0] / own[c][1], 5) for c in sorted(own)] for own in counts]


def run_seeds(
    method: Method,
    data: Callable[[int], Federation],
    seeds: Sequence[int],
    rounds: int,
    parts: Sequence[str] = PARTS,
) -> SeedRuns:
    """Everybody takes part in every round, and is evaluated after the last."""
    began = time.process_time()
    runs = [Experiment.of(method, data(seed), seed) for seed in seeds]
    everybody = [range(one.data.clients) for one in runs]
    lanes, engine = Lanes(runs), Vectorised(chunk=sum(map(len, everybody)))
    states = [one.start() for one in runs]
    for _ in range(rounds):
        states = [state for state, _ in lanes.run_round(states, everybody, engine)]
    ends = lanes.evaluate_parts(states, everybody, engine, parts)
    return SeedRuns(runs, states, ends, round(time.process_time() - began))
