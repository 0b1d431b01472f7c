"""Several runs as one: seeds and rates are lanes, one more dimension of the stack that a device
works on.

Lanes share a method (but for learning rates, strengths of pulls and what the server alone uses),
nets of one shape and the round; they differ in seeds, data, partition, cohort and state. Each lane
ends as its run would have ended alone, up to the last bits of sums.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedblocks.core.errors import UserError
from fedblocks.core.local_round import rates_of
from fedblocks.core.method import Method
from fedblocks.core.phases import Update
from fedblocks.core.server import Download
from fedblocks.core.state import State
from fedblocks.core.trees import concatenate, split
from fedblocks.data.federation import Federation, Rows
from fedblocks.engines import speculation
from fedblocks.engines.close_round import ClientResults, Report, close_round
from fedblocks.engines.job import Evaluated, Job, Origin, Rates, RowTables, Trained
from fedblocks.engines.lanes.side_by_side import speculate_lanes
from fedblocks.engines.round import Engine, Evaluation, Experiment, evaluation_jobs


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
    ) -> list[tuple[State, Report]]:
        """One round of every lane, each with its own cohort; `coming` are those of the
        next round, where known.
        """
        results: list[dict[str, ClientResults]] = [{} for _ in states]
        for group in self.experiments[0].methods:
            jobs = self._training_jobs(group, states, clients)
            if jobs:
                trained = split_trained(
                    engine.train(join_jobs(self, jobs), score), list(jobs.values())
                )
                for (lane, job), own in zip(jobs.items(), trained, strict=True):
                    results[lane][group] = ClientResults.of(job, own)
        ends = [
            (experiment.methods, state, own, experiment.share)
            for experiment, state, own in zip(self.experiments, states, results, strict=True)
        ]
        device = self.experiments[0].data.x.device
        speculated = speculate_lanes(ends) if speculation.pays_on(device) else [None] * len(ends)
        for experiment, state, ids in zip(self.experiments, states, coming, strict=False):
            experiment.prefetch_batches(ids, state.round + 1)
        return [
            close_round(*end) if own is None else own.settle(*end)
            for end, own in zip(ends, speculated, strict=True)
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
        lanes = [
            evaluation_jobs(experiment, state, ids, joining)
            for experiment, state, ids in zip(self.experiments, states, clients, strict=True)
        ]
        for jobs in _by_group(lanes):
            evaluated = split_evaluated(
                engine.evaluate(join_jobs(self, jobs), parts), list(jobs.values())
            )
            for (lane, job), own in zip(jobs.items(), evaluated, strict=True):
                evaluations[lane].add(own, job.ids)
        return evaluations

    def _training_jobs(
        self, group: str, states: Sequence[State], clients: Sequence[Sequence[int]]
    ) -> dict[int, Job]:
        jobs: dict[int, Job] = {}
        for lane, (experiment, state) in enumerate(zip(self.experiments, states, strict=True)):
            ids = experiment.members(clients[lane]).get(group)
            if ids:
                jobs[lane] = experiment.training_job(group, ids, state)
        return jobs


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
                    each = [
                        rate
                        for rate, job in zip(own, self.jobs.values(), strict=True)
                        for _ in job.ids
                    ]
                    rates[number, place] = torch.tensor(
                        each, device=self.device, dtype=self.method.net.dtype
                    )
        return rates


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
    sent = Download(
        concatenate([job.sent.blocks for job in jobs.values()]),
        {},
        {},
        concatenate([job.sent.bytes_down for job in jobs.values()]),
    )
    whole = JoinedJob(
        first.method,
        first.phases,
        cohort,
        sent,
        first.bytes_per_slot,
        lanes.data,
        first.seed,
        first.training,
        first.purpose,
        lanes.tables,
    )
    object.__setattr__(whole, "lanes", lanes)
    object.__setattr__(whole, "jobs", jobs)
    return whole


def split_trained(trained: Trained, jobs: Sequence[Job]) -> list[Trained]:
    """What the clients of each job ended with."""
    counts = [len(job.ids) for job in jobs]
    names = [own.name for own in fields(trained)]
    trees = [split(getattr(trained, name), counts) for name in names]
    return [Trained(**dict(zip(names, own, strict=True))) for own in zip(*trees, strict=True)]


def split_evaluated(evaluated: Evaluated, jobs: Sequence[Job]) -> list[Evaluated]:
    """How the clients of each job did."""
    counts = [len(job.ids) for job in jobs]
    trees = zip(split(evaluated.counts, counts), split(evaluated.portraits, counts), strict=True)
    return [Evaluated(*own) for own in trees]


def _by_group(lanes: Sequence[Iterator[Job]]) -> Iterator[dict[int, Job]]:
    """The jobs of all lanes that have the same method, group by group."""
    groups: dict[int, dict[int, Job]] = {}
    for lane, jobs in enumerate(lanes):
        for number, job in enumerate(jobs):
            groups.setdefault(number, {})[lane] = job
    yield from groups.values()


def merge_federations(data: Sequence[Federation]) -> Federation:
    """Federations side by side: inputs that they share are held once."""
    pools: list[Federation] = []
    starts: list[int] = []  # where the rows of each federation begin
    for one in data:
        same = next((p for p, own in enumerate(pools) if _same_rows(own, one)), None)
        if same is None:
            starts.append(sum(len(own.y) for own in pools))
            pools.append(one)
        else:
            starts.append(sum(len(own.y) for own in pools[:same]))
    shared = len(pools) == 1
    x = pools[0].x if shared else torch.cat([own.x for own in pools])
    y = pools[0].y if shared else torch.cat([own.y for own in pools])
    train, validation, test = (
        _side_by_side([one.parts[part] for one in data], starts) for part in data[0].parts
    )
    tags = {name: np.concatenate([one.tags[name] for one in data]) for name in data[0].tags}
    return Federation(
        x, y, train, validation, test, data[0].classes, tags=tags, about=data[0].about
    )


def _same_rows(one: Federation, other: Federation) -> bool:
    alike = one.x.shape == other.x.shape and one.y.shape == other.y.shape
    same = one.x.data_ptr() == other.x.data_ptr() and one.y.data_ptr() == other.y.data_ptr()
    return alike and (same or (torch.equal(one.y, other.y) and torch.equal(one.x, other.x)))


def _side_by_side(rows: Sequence[Rows], starts: Sequence[int]) -> Rows:
    index = np.concatenate([own.index + start for own, start in zip(rows, starts, strict=True)])
    sizes = np.concatenate([own.sizes for own in rows])
    return Rows(index, np.concatenate([[0], np.cumsum(sizes)]))


def why_not(experiments: Sequence[Experiment]) -> str | None:
    """What keeps runs from being lanes of one, or nothing; one alone can always be."""
    first, *others = experiments
    for other in others:
        reason = _differ(first, other)
        if reason:
            return reason
    unfit = next((m.net.unmappable[0] for m in first.methods.values() if m.net.unmappable), None)
    if others and unfit:
        return f'layer "{unfit}" of the net cannot be mapped over clients'
    blocks = [block for method in first.methods.values() for block in method.blocks().values()]
    if others and any(getattr(block, "on_request", False) for block in blocks):
        return "clients ask the server for modules in the middle of a round"
    return None


def _differ(first: Experiment, other: Experiment) -> str | None:
    if first.methods.keys() != other.methods.keys():
        return "they have other groups of clients"
    for group, method in first.methods.items():
        reason = _methods_differ(method, other.methods[group])
        if reason:
            return reason
    if (
        first.data.x.shape[1:] != other.data.x.shape[1:]
        or first.data.tags.keys() != other.data.tags.keys()
    ):
        return "their data have other shapes or tags"
    if first.data.about.get("vocabulary") != other.data.about.get("vocabulary"):
        return "their texts have other vocabularies"
    return None


def _methods_differ(one: Method, other: Method) -> str | None:
    if type(one) is not type(other):
        return "they have other methods"
    differing = [
        f.name
        for f in fields(one)
        if f.name != "net" and getattr(one, f.name) != getattr(other, f.name)
    ]
    free = (*(() if one.lr_used_in_hooks else ("lr",)), *one.in_steps_only)
    for name in differing:
        if name == "lr" and name not in free:
            return f"{type(one).__name__} uses its learning rate in other places than its steps"
        if name not in free:
            return f"{name} differs, and only seeds and {', '.join(free)} may"
    if differing and _courses(one) != _courses(other):
        return "their local training differs in more than rates"
    shapes: list[Any] = [
        [(name, value.shape) for name, value in m.net.init(0).items()] for m in (one, other)
    ]
    return "their nets have other shapes" if shapes[0] != shapes[1] else None


def _courses(method: Method) -> list[Any]:
    """Local training of every kind, less the numbers that each client may have its own of."""
    return [
        [
            (
                phase.epochs,
                phase.on,
                phase.steps,
                [_without_rates(update) for update in phase.updates],
            )
            for phase in phases
        ]
        for phases in (method.phases(), method.adaptation(), method.joining())
    ]


def _without_rates(update: Update) -> tuple[Any, ...]:
    pull = None if update.pull is None else replace(update.pull, strength=0.0)
    return update.train, update.optimizer, pull, update.repeat
