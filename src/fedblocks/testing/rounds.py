"""Short runs for the checks, and one round taken apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from fedblocks.core.state import State
from fedblocks.core.uploads import Uploads, uploads_of
from fedblocks.engines.close_round import Report
from fedblocks.engines.job import Job, Trained
from fedblocks.engines.round import Engine, Experiment, run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.testing.compare import Leaves, differences, judged, state_leaves

ENGINES: tuple[Engine, ...] = (Sequential(), Vectorised())


@dataclass(frozen=True, eq=False)
class Run:
    """The states before, between and after some rounds."""

    experiment: Experiment
    states: list[State]
    reports: list[Report]

    @property
    def last(self) -> State:
        return self.states[-1]


@dataclass(frozen=True, eq=False)
class KeptRun(Run):
    """A run for several checks, and its states as they were when it ended."""

    engine: Engine
    copies: list[Leaves]

    @cached_property
    def scores(self) -> Leaves:
        """How all models do at the end."""
        return judged(self.experiment, self.last, self.engine)

    def is_unchanged(self) -> bool:
        """Whether nobody has written to the states since, as a wrong method may."""
        now = (state_leaves(state) for state in self.states)
        return not any(differences(*pair) for pair in zip(now, self.copies, strict=True))


def run(
    experiment: Experiment,
    engine: Engine,
    cohorts: Sequence[Sequence[int]],
    state: State | None = None,
    score: str | None = None,
) -> Run:
    """Some rounds, one for each cohort."""
    states = [experiment.start() if state is None else state]
    reports: list[Report] = []
    for clients in cohorts:
        after, report = run_round(experiment, states[-1], clients, engine, score)
        states.append(after)
        reports.append(report)
    return Run(experiment, states, reports)


@dataclass(frozen=True, eq=False)
class Sendings:
    """What one group of clients was given, made of it, and sends."""

    job: Job
    trained: Trained
    uploads: Uploads


def trained_groups(
    experiment: Experiment, state: State, clients: Sequence[int], engine: Engine
) -> dict[str, Sendings]:
    """The clients' half of a round, by group."""
    sendings = {}
    for group, ids in experiment.members(clients).items():
        method = experiment.methods[group]
        job = experiment.job(group, ids, state, method.phases(), True, "train")
        out = engine.train(job)
        uploads = uploads_of(
            method, out.blocks, out.weights, job.sent.reads, out.wanted, job.cohort
        )
        sendings[group] = Sendings(job, out, uploads)
    return sendings
