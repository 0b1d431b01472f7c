"""The jobs of several lanes as one, and what comes of it as what comes of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedblocks.core.client import ClientStack
from fedblocks.core.local_round import optimizer_place, rates_of
from fedblocks.core.optimizers import Rate
from fedblocks.core.parts import Blocks
from fedblocks.core.server import Download, request
from fedblocks.core.trees import concatenate, map_leaves, split, stack, take
from fedblocks.data.federation import Federation
from fedblocks.engines.job import Evaluated, Job, Rates, Trained
from fedblocks.engines.lanes.numbers import differing_numbers, differing_options
from fedblocks.engines.plans import Origin
from fedblocks.engines.row_tables import RowTables


@dataclass(frozen=True, eq=False, kw_only=True)
class JoinedJob(Job):
    """The jobs of several lanes as one: their clients side by side."""

    offsets: Sequence[int]  # the number of each lane's first client in the merged federation
    jobs: Mapping[int, Job]  # by lane

    @cached_property
    def ids(self) -> list[int]:
        """Numbers in the merged federation."""
        return [self.offsets[lane] + i for lane, job in self.jobs.items() for i in job.ids]

    @cached_property
    def origins(self) -> list[Origin]:
        return [origin for job in self.jobs.values() for origin in job.origins]

    @cached_property
    def own_numbers(self) -> dict[str, Any]:
        """Numbers of methods and of their optimizers where lanes differ, and rounds if they do."""
        by_lane = [(job.method, job.cohort.round) for job in self.jobs.values()]
        options = {path: self._by_client(own) for path, own in differing_options(by_lane).items()}
        optimizers = {
            optimizer_place(number, place): {
                path: self._by_client(own)
                for path, own in differing_numbers([u.optimizer for u in updates]).items()
            }
            for number, phases in enumerate(zip(*(job.phases for job in self.jobs.values())))
            for place, updates in enumerate(zip(*(phase.updates for phase in phases)))
        }
        rounds = [float(round) for _, round in by_lane]
        own_round = {"round": self._by_client(rounds)} if len(set(rounds)) > 1 else {}
        lane = [lane for lane, job in enumerate(self.jobs.values()) for _ in job.ids]
        lanes = {"lane": torch.tensor(lane, device=self.device)} if self.sent.on_request else {}
        return {"options": options, "optimizers": optimizers, **own_round, **lanes}

    def requested(self, wanted: Mapping[str, Tensor], local: ClientStack) -> Blocks:
        """From the pools of each client's own lane."""
        pools = take(self.sent.on_request, local.tensors["lane"])  # [clients, slots, ...]
        return {name: local.each(request)(slots, wanted[name]) for name, slots in pools.items()}

    @cached_property
    def rates(self) -> Rates:
        """Learning rates, strengths of pulls and norms where lanes differ: one for each client."""
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


@dataclass(frozen=True, eq=False)
class Ground:
    """What all jobs of some lanes stand on: their data as one federation."""

    data: Federation
    tables: RowTables
    offsets: Sequence[int]  # the number of each lane's first client


def join_jobs(ground: Ground, jobs: Mapping[int, Job]) -> Job:
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
    on_request = stack([job.sent.on_request for job in jobs.values()])  # [lanes, slots, ...]
    bytes_down = concatenate([job.sent.bytes_down for job in jobs.values()])
    return JoinedJob(
        first.method,
        first.phases,
        cohort,
        Download(blocks, {}, on_request, bytes_down, first.sent.frozen),
        first.bytes_per_slot,
        ground.data,
        first.seed,
        first.training,
        first.purpose,
        ground.tables,
        offsets=ground.offsets,
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
