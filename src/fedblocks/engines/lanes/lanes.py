"""Several runs as one: seeds and rates are lanes, one more dimension of the stack that a device
works on.

Lanes share a method (but for learning rates, strengths of pulls and what the server alone uses),
nets of one shape and the round; they differ in seeds, data, partition, cohort and state. Each lane
ends as its run would have ended alone, up to the last bits of sums.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor

from fedblocks.core.admission import Refusal
from fedblocks.core.errors import UserError
from fedblocks.core.local_round import rates_of
from fedblocks.core.optimizers import Rate
from fedblocks.core.server import Download
from fedblocks.core.state import State
from fedblocks.core.trees import concatenate, map_leaves, split
from fedblocks.data.federation import Federation
from fedblocks.engines import speculation
from fedblocks.engines.close_round import ClientResults, Report, close_round
from fedblocks.engines.failures import FAILED, ClientFailures, describe
from fedblocks.engines.job import Evaluated, Job, Origin, Rates, RowTables, Trained
from fedblocks.engines.lanes.federations import merge_federations
from fedblocks.engines.lanes.likeness import why_not
from fedblocks.engines.lanes.side_by_side import speculate_lanes
from fedblocks.engines.round import Engine, Evaluation, Experiment, evaluation_job

Result = TypeVar("Result")


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
    def data(self) -> Federation:
        """The clients of all lanes, one lane after the other."""
        return merge_federations([experiment.data for experiment in self.experiments])

    @cached_property
    def tables(self) -> RowTables:
        return RowTables()

    @cached_property
    def offsets(self) -> list[int]:
        """The number of each lane's first client in the merged federation."""
        counts = [experiment.data.clients for experiment in self.experiments]
        return [sum(counts[:lane]) for lane in range(len(counts))]

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
            for jobs, trained in self._carry_out(training, clients, train, absent):
                by_lane = split_trained(trained, list(jobs.values()))
                for (lane, job), own in zip(jobs.items(), by_lane, strict=True):
                    rubbish = [i in corrupt[lane] for i in job.ids] if corrupt is not None else []
                    results[lane][group] = ClientResults.of(job, spoil(own, rubbish))
        ends = [
            (experiment.methods, state, own, experiment.share)
            for experiment, state, own in zip(self.experiments, states, results, strict=True)
        ]
        device = self.experiments[0].data.x.device
        speculated = speculate_lanes(ends) if speculation.pays_on(device) else [None] * len(ends)
        for experiment, state, ids in zip(self.experiments, states, coming, strict=False):
            experiment.prefetch_batches(ids, state.round + 1)
        closed = [
            close_round(*end) if own is None else own.settle(*end)
            for end, own in zip(ends, speculated, strict=True)
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
            for jobs, evaluated in self._carry_out(trying, clients, evaluate, absent):
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
    ) -> Iterator[tuple[dict[int, Job], Result]]:
        """Some work for the clients of every lane, lanes of one shape together, without the
        clients whose own part of it fails; these are added to the absent ones.
        """
        for alike in _by_shape(jobs_for(clients)):
            jobs, lanes = alike, set(alike)
            while jobs:
                try:
                    yield jobs, work(join_jobs(self, jobs))
                    break
                except ClientFailures as failures:
                    places = [(lane, i) for lane, job in jobs.items() for i in job.ids]
                    for member, error in failures.by_member.items():
                        lane, client = places[member]
                        absent[lane].append(Refusal(client, FAILED, describe(error)))
                gone = [{refusal.client for refusal in own} for own in absent]
                left = [[i for i in ids if i not in gone[lane]] for lane, ids in enumerate(clients)]
                jobs = jobs_for([ids if lane in lanes else [] for lane, ids in enumerate(left)])

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


@dataclass(frozen=True, eq=False, kw_only=True)
class JoinedJob(Job):
    """The jobs of several lanes as one: their clients side by side."""

    lanes: Lanes
    jobs: Mapping[int, Job]

    @cached_property
    def ids(self) -> list[int]:
        """Numbers in the merged federation."""
        return [self.lanes.offsets[lane] + i for lane, job in self.jobs.items() for i in job.ids]

    @cached_property
    def origins(self) -> list[Origin]:
        return [origin for job in self.jobs.values() for origin in job.origins]

    @cached_property
    def rates(self) -> Rates:
        """Learning rates and strengths of pulls where lanes differ: one for each client."""
        rates: dict[tuple[int, int], Tensor] = {}
        for number in range(len(self.phases)):
            lanes = [rates_of(job.phases[number], job.cohort.round) for job in self.jobs.values()]
            for place, own in enumerate(zip(*lanes, strict=True)):
                if len(set(own)) > 1:
                    rates[number, place] = self._by_client(own)
        return rates

    def _by_client(self, by_lane: Sequence[Rate]) -> Tensor:
        jobs = zip(by_lane, self.jobs.values(), strict=True)
        each = [rate for rate, job in jobs for _ in job.ids]
        return torch.tensor(each, device=self.device, dtype=self.method.net.dtype)


def join_jobs(lanes: Lanes, jobs: Mapping[int, Job]) -> Job:
    """One job for the clients of several lanes."""
    first = next(iter(jobs.values()))
    if len(jobs) == 1:
        return first
    cohorts = [job.cohort for job in jobs.values()]
    cohort = replace(
        cohorts[0],
        ids=torch.cat([cohort.ids for cohort in cohorts]),
        sizes=torch.cat([cohort.sizes for cohort in cohorts]),
        tags=concatenate([cohort.tags for cohort in cohorts]),
    )
    blocks = concatenate([job.sent.blocks for job in jobs.values()])
    bytes_down = concatenate([job.sent.bytes_down for job in jobs.values()])
    return JoinedJob(
        first.method,
        first.phases,
        cohort,
        Download(blocks, {}, {}, bytes_down, first.sent.frozen),
        first.bytes_per_slot,
        lanes.data,
        first.seed,
        first.training,
        first.purpose,
        lanes.tables,
        lanes=lanes,
        jobs=jobs,
    )


def split_trained(trained: Trained, jobs: Sequence[Job]) -> list[Trained]:
    """What the clients of each job ended with."""
    counts = [len(job.ids) for job in jobs]
    names = [own.name for own in fields(trained)]
    trees = [split(getattr(trained, name), counts) for name in names]
    return [Trained(**dict(zip(names, own, strict=True))) for own in zip(*trees, strict=True)]


def spoil(trained: Trained, rubbish: Sequence[bool]) -> Trained:
    """The same, with NaN in place of what some of the clients learned."""
    if not any(rubbish):
        return trained

    def put_nan(values: Tensor) -> Tensor:
        if not values.is_floating_point():
            return values
        rows = torch.tensor(rubbish, device=values.device).view(-1, *[1] * (values.dim() - 1))
        return torch.where(rows, torch.nan, values)

    return replace(trained, blocks=map_leaves(put_nan, trained.blocks))


def split_evaluated(evaluated: Evaluated, jobs: Sequence[Job]) -> list[Evaluated]:
    """How the clients of each job did."""
    counts = [len(job.ids) for job in jobs]
    trees = zip(split(evaluated.counts, counts), split(evaluated.portraits, counts), strict=True)
    return [Evaluated(*own) for own in trees]


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
