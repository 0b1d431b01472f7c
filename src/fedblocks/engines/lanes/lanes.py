"""Several runs as one: seeds and numbers are lanes, one more dimension of the stack that a device
works on.

Lanes share a method but for its numbers, and nets of one shape; they differ in those numbers, in
seeds, data, partition, cohort, round and state. Each lane ends as its run would have ended alone,
up to the last bits of sums.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from fedblocks.core.admission import Refusal
from fedblocks.core.errors import UserError
from fedblocks.core.state import State
from fedblocks.engines import speculation
from fedblocks.engines.close_round import ClientResults, Report, close_round, fetch_bytes
from fedblocks.engines.failures import FAILED, ClientFailures, describe
from fedblocks.engines.job import Job
from fedblocks.engines.lanes.federations import merge_federations
from fedblocks.engines.lanes.joined import (
    Ground,
    join_jobs,
    split_evaluated,
    split_trained,
    spoil,
)
from fedblocks.engines.lanes.likeness import why_not
from fedblocks.engines.lanes.side_by_side import speculate_lanes
from fedblocks.engines.plans import join_rosters
from fedblocks.engines.round import Engine, Evaluation, Experiment, evaluation_job
from fedblocks.engines.row_tables import RowTables
from fedblocks.engines.vectorised import Vectorised, lay_out

Result = TypeVar("Result")
DECIDES = "data-dependent control flow"  # what vmap says of Python's `if` on a client's number


@dataclass(frozen=True, eq=False)
class Lanes:
    """Runs that are done together, and their data as one federation; one run alone is a
    list of one lane.
    """

    experiments: Sequence[Experiment]

    def __post_init__(self) -> None:
        reason = why_not(self.experiments)
        if reason:
            raise UserError(
                f"these runs cannot be lanes of one: {reason}", "run them one after the other"
            )

    @cached_property
    def ground(self) -> Ground:
        """The clients of all lanes, one lane after the other."""
        counts = [experiment.data.clients for experiment in self.experiments]
        offsets = [sum(counts[:lane]) for lane in range(len(counts))]
        data = merge_federations([experiment.data for experiment in self.experiments])
        return Ground(data, RowTables(), offsets)

    @cached_property
    def apart(self) -> list[str]:
        """Methods that decide by numbers in which lanes differ, if one was seen to: from then on
        each lane is a stack of its own.
        """
        return []

    def run_round(
        self,
        states: Sequence[State],
        clients: Sequence[Sequence[int]],
        engine: Engine,
        score: str | None = None,
        coming: Sequence[Sequence[int]] = (),
        *,
        corrupt: Sequence[Collection[int]] | None = None,
    ) -> list[tuple[State, Report]]:
        """One round of every lane, each with its own cohort; `coming` are those of the
        next round, where known, `corrupt` the clients of each lane that send NaN.
        """
        results: list[dict[str, ClientResults]] = [{} for _ in states]
        absent: list[list[Refusal]] = [[] for _ in states]
        for group in self.experiments[0].methods:
            training = lambda ids, group=group: self._training_jobs(group, states, ids)
            train = lambda job: engine.train(job, score)
            stacks = isinstance(engine, Vectorised)
            for jobs, trained in self._carry_out(training, clients, train, absent, stacks):
                by_lane = split_trained(trained, list(jobs.values()))
                for (lane, job), own in zip(jobs.items(), by_lane, strict=True):
                    rubbish = [i in corrupt[lane] for i in job.ids] if corrupt is not None else []
                    results[lane][group] = ClientResults.of(job, spoil(own, rubbish))
        ends = [
            (experiment.methods, state, own, experiment.share)
            for experiment, state, own in zip(self.experiments, states, results, strict=True)
        ]
        device = self.experiments[0].data.device
        speculated = speculate_lanes(ends) if speculation.pays_on(device) else [None] * len(ends)
        self._lay_out(states, coming, engine)
        fetched = fetch_bytes(results)
        closed = [
            close_round(methods, state, own, share)
            if early is None
            else early.settle(methods, state, own, share)
            for (methods, state, _, share), own, early in zip(
                ends, fetched, speculated, strict=True
            )
        ]
        return [
            (state, replace(report, refusals=[*report.refusals, *own]))
            for (state, report), own in zip(closed, absent, strict=True)
        ]

    def evaluate_parts(
        self,
        states: Sequence[State],
        clients: Sequence[Sequence[int]],
        engine: Engine,
        parts: Sequence[str],
        joining: bool = False,
    ) -> list[Evaluation]:
        """Evaluate every lane as `evaluate_parts` of its experiment would."""
        evaluations = [Evaluation() for _ in states]
        absent: list[list[Refusal]] = [[] for _ in states]
        for group in self.experiments[0].methods:
            trying = lambda ids, group=group: self._evaluation_jobs(group, states, ids, joining)
            evaluate = lambda job: engine.evaluate(job, parts)
            stacks = isinstance(engine, Vectorised)
            for jobs, evaluated in self._carry_out(trying, clients, evaluate, absent, stacks):
                by_lane = split_evaluated(evaluated, list(jobs.values()))
                for (lane, job), own in zip(jobs.items(), by_lane, strict=True):
                    evaluations[lane].add(own, job.ids)
        for evaluation, refusals in zip(evaluations, absent, strict=True):
            evaluation.failures.extend(refusals)
        return evaluations

    def _carry_out(
        self,
        jobs_for: Callable[[Sequence[Sequence[int]]], dict[int, Job]],
        clients: Sequence[Sequence[int]],
        work: Callable[[Job], Result],
        absent: list[list[Refusal]],
        stacks: bool,
    ) -> Iterator[tuple[dict[int, Job], Result]]:
        """Some work for the clients of every lane, without the clients whose own part of it
        fails; these are added to the absent ones. Lanes of one shape are together where the
        engine stacks clients.
        """
        jobs = jobs_for(clients)
        waiting = _by_shape(jobs) if stacks and not self.apart else _one_by_one(jobs)
        while waiting:
            jobs = waiting.pop(0)
            lanes = set(jobs)
            while jobs:
                try:
                    yield jobs, work(join_jobs(self.ground, jobs))
                    break
                except RuntimeError as error:
                    if len(jobs) == 1 or DECIDES not in str(error):
                        raise
                    self.apart.append(type(next(iter(jobs.values())).method).__name__)
                    waiting = [*_one_by_one(jobs), *waiting]
                    break
                except ClientFailures as failures:
                    places = [(lane, i) for lane, job in jobs.items() for i in job.ids]
                    for member, failure in failures.by_member.items():
                        lane, client = places[member]
                        absent[lane].append(Refusal(client, FAILED, describe(failure)))
                gone = [{refusal.client for refusal in own} for own in absent]
                left = [[i for i in ids if i not in gone[lane]] for lane, ids in enumerate(clients)]
                jobs = jobs_for([ids if lane in lanes else [] for lane, ids in enumerate(left)])

    def _lay_out(
        self, states: Sequence[State], coming: Sequence[Sequence[int]], engine: Engine
    ) -> None:
        """Plan the coming round of all lanes, as the jobs of one stack where they will be."""
        lanes = [
            experiment.rosters(ids, state.round + 1)
            for experiment, state, ids in zip(self.experiments, states, coming, strict=False)
        ]
        if len(lanes) > 1 and isinstance(engine, Vectorised) and not self.apart:
            own = [[lane[group] for lane in lanes if group in lane] for group in lanes[0]]
            lay_out(self.ground.tables, [join_rosters(rosters) for rosters in own], engine)
            return
        for experiment, rosters in zip(self.experiments, lanes, strict=False):
            lay_out(experiment.tables, [*rosters.values()], engine)

    def _evaluation_jobs(
        self, group: str, states: Sequence[State], clients: Sequence[Sequence[int]], joining: bool
    ) -> dict[int, Job]:
        jobs: dict[int, Job] = {}
        for lane, (experiment, state) in enumerate(zip(self.experiments, states, strict=True)):
            ids = experiment.members(clients[lane]).get(group)
            if ids:
                jobs[lane] = evaluation_job(experiment, group, ids, state, joining)
        return jobs

    def _training_jobs(
        self, group: str, states: Sequence[State], clients: Sequence[Sequence[int]]
    ) -> dict[int, Job]:
        jobs: dict[int, Job] = {}
        for lane, (experiment, state) in enumerate(zip(self.experiments, states, strict=True)):
            ids = experiment.members(clients[lane]).get(group)
            if ids:
                jobs[lane] = experiment.training_job(group, ids, state)
        return jobs


def _one_by_one(jobs: Mapping[int, Job]) -> list[dict[int, Job]]:
    return [{lane: job} for lane, job in jobs.items()]


def _by_shape(jobs: Mapping[int, Job]) -> list[dict[int, Job]]:
    """The jobs that one stack can hold: what a method sends may differ in shape between lanes,
    as where one has found more clusters than another.
    """
    alike: dict[Hashable, dict[int, Job]] = {}
    for lane, job in jobs.items():
        shape = tuple(
            (name, key, value.shape[1:])
            for name, params in job.sent.blocks.items()
            for key, value in params.items()
        )
        alike.setdefault(shape, {})[lane] = job
    return list(alike.values())
