"""Engines with a hand in them: checks look at what goes in and out, and change it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

import torch

from fedblocks.core.client import ClientStack, Each
from fedblocks.core.parts import Blocks
from fedblocks.core.phases import Batch, Loss, Phase
from fedblocks.core.trees import Tree, copy, leaves
from fedblocks.engines.batching import Draw, Positions, batches
from fedblocks.engines.job import Evaluated, Job, Trained
from fedblocks.engines.plans import Origin, StackPlan
from fedblocks.engines.round import Engine


def _same(job: Job) -> Job:
    return job


def _kept(job: Job, trained: Trained) -> Trained:
    return trained


@dataclass(frozen=True, eq=False)
class Rigged:
    """An engine whose jobs and results pass through two functions."""

    engine: Engine
    before: Callable[[Job], Job] = _same
    after: Callable[[Job, Trained], Trained] = _kept

    @property
    def name(self) -> str:
        return self.engine.name

    def train(self, job: Job, score: str | None = None) -> Trained:
        job = self.before(job)
        return self.after(job, self.engine.train(job, score))

    def evaluate(self, job: Job, parts: Sequence[str]) -> Evaluated:
        return self.engine.evaluate(self.before(job), parts)


@dataclass(frozen=True, eq=False)
class Remembering:
    """An engine that trains once where the same clients of one experiment are given the same."""

    engine: Engine
    known: dict[tuple[int, tuple[int, ...]], list[tuple[Tree, Trained]]] = field(
        default_factory=dict
    )

    @property
    def name(self) -> str:
        return self.engine.name

    def train(self, job: Job, score: str | None = None) -> Trained:
        sent = (job.sent.blocks, job.sent.on_request, job.sent.bytes_down)
        known = self.known.setdefault((job.cohort.round, tuple(job.ids)), [])
        for before, trained in known:
            if all(map(torch.equal, leaves(before), leaves(sent))):
                return _copied(trained)
        trained = self.engine.train(job, score)
        known.append((copy(sent), _copied(trained)))
        return trained

    def evaluate(self, job: Job, parts: Sequence[str]) -> Evaluated:
        return self.engine.evaluate(job, parts)


def _copied(trained: Trained) -> Trained:
    """Copies that whoever is given them may write to."""
    return Trained(**{f.name: copy(getattr(trained, f.name)) for f in fields(Trained)})


@dataclass(frozen=True, eq=False)
class CastJob(Job):
    """A job in which clients see the batches and the noise of others: twins, or clients
    under new numbers.
    """

    cast: Mapping[int, int] = field(default_factory=dict)  # client -> whose randomness it is given
    phases_alike: bool = False  # every phase sees the batches of the first

    @cached_property
    def batches(self) -> list[list[list[Positions]]]:
        return [
            self._batches_as(origin, int(n))
            for origin, n in zip(self.origins, self.sizes, strict=True)
        ]

    def _batches_as(self, origin: Origin, count: int) -> list[list[Positions]]:
        draw = Draw(*origin, self.purpose)
        return [
            batches(self.method, phase, 0 if self.phases_alike else number, count, draw)
            for number, phase in enumerate(self.phases)
        ]

    @cached_property
    def origins(self) -> list[Origin]:
        return [(self.seed, self.cohort.round, self.cast.get(i, i)) for i in self.ids]

    def plan(self, members: Sequence[int]) -> StackPlan:
        own = [self.batches[m] for m in members]
        origins = [self.origins[m] for m in members]
        return StackPlan(own, origins, self.purpose, self.device, self.method.net.dtype)


def recast(cast: Mapping[int, int], phases_alike: bool = False) -> Callable[[Job], Job]:
    """Give clients the randomness of others."""

    def change(job: Job) -> Job:
        own = {f.name: getattr(job, f.name) for f in fields(Job)}
        return CastJob(**own, cast=cast, phases_alike=phases_alike)

    return change


class JunkJob(Job):
    """A job whose padded rows are all row 0 of the pool, which should then belong to nobody."""

    def several(self, members: Sequence[int], each: Each) -> ClientStack:
        local = super().several(members, each)
        for rows, size in (("rows", "size"), ("validation_rows", "validation_size")):
            table = local.tensors[rows]
            real = torch.arange(table.shape[1]) < local.tensors[size][:, None]
            local.tensors[rows] = torch.where(real, table, 0)
        return local


def pad_with(value: float, label: int) -> Callable[[Job], Job]:
    """Put row 0 in every padded place of a client's data, and a value and a label in
    those of every batch.
    """

    def change(job: Job) -> Job:
        own = {f.name: getattr(job, f.name) for f in fields(Job)}
        own["phases"] = [_pad_phase(phase, value, label) for phase in job.phases]
        return JunkJob(**own)

    return change


def _pad_phase(phase: Phase, value: float, label: int) -> Phase:
    updates = [
        u if u.loss is None else replace(u, loss=_pad_loss(u.loss, value, label))
        for u in phase.updates
    ]
    return replace(phase, updates=tuple(updates))


def _pad_loss(loss: Loss, value: float, label: int) -> Loss:
    def padded(blocks: Blocks, batch: Batch) -> torch.Tensor:
        x, y = batch.x, batch.y
        padding = batch.mask == 0  # [batch]
        fill = value if x.is_floating_point() else label
        x = torch.where(padding.view(-1, *[1] * (x.dim() - 1)), torch.full_like(x, fill), x)
        y = torch.where(padding.view(-1, *[1] * (y.dim() - 1)), torch.full_like(y, label), y)
        return loss(blocks, replace(batch, x=x, y=y))

    return padded
