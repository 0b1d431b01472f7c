"""The fast engine: a whole cohort as one stack, mapped with `vmap`, in chunks that fit
the memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from fedblocks.core.client import ClientStack, Each, Mapped, Step
from fedblocks.core.errors import UserError
from fedblocks.core.hooks import is_own
from fedblocks.core.local_round import StepRunner, step_by_step
from fedblocks.core.method import Method
from fedblocks.core.parts import Blocks
from fedblocks.core.trees import concatenate, is_repeated, map_leaves, take
from fedblocks.engines import speculation
from fedblocks.engines.cuda_graphs import Captured
from fedblocks.engines.job import Evaluated, Job, Trained
from fedblocks.engines.local_work import evaluate_locally, train_locally
from fedblocks.engines.plans import Roster
from fedblocks.engines.row_tables import RowTables
from fedblocks.engines.scoring import EvalChunk, chunk_of, chunks_of
from fedblocks.layers.embedding import OwnTables


@dataclass(frozen=True)
class Vectorised:
    """All clients of a chunk at once."""

    name: str = "vectorised"
    chunk: int = 64  # clients in one stack
    graphs: bool = True  # on a GPU, record steps and replay them
    # by the method's identity
    recorded: dict[int, Captured] = field(default_factory=dict, compare=False, repr=False)

    def runner(self, job: Job) -> StepRunner:
        """How the phases of a job are run: as recorded graphs where there is a GPU."""
        if not self.graphs or job.device.type != "cuda" or job.data.streamed:
            return step_by_step
        # holds it, so the id stays its own
        return self.recorded.setdefault(id(job.method), Captured(job.method))

    def train(self, job: Job, score: str | None = None) -> Trained:
        """Local training of the whole cohort; `score` names a part of the data to try
        the trained models on.
        """
        stacks = job.roster.stacks(self.chunk)
        runner = self.runner(job)
        ends: list[Trained] = []
        for members in stacks:
            chunks = [] if score is None else _chunks(job, members, score)
            ends.append(train_locally(job, *_stack(job, members, runner), chunks, runner))
        back = _back(stacks, job.device)
        return Trained(
            _join([end.blocks for end in ends], back),
            _join([end.weights for end in ends], back),
            _join([end.wanted for end in ends], back),
            {**job.sent.bytes_down, **_join([end.bytes_down for end in ends], back)},
            _join([end.counts for end in ends], back),
        )

    def evaluate(self, job: Job, parts: Sequence[str]) -> Evaluated:
        """Every view of every client's model on parts of its data, after one adaptation."""
        stacks = job.roster.stacks(self.chunk)
        runner = self.runner(job)
        ends: list[Evaluated] = []
        for members in stacks:
            chunks = {part: _chunks(job, members, part) for part in parts}
            ends.append(evaluate_locally(job, *_stack(job, members, runner), chunks, runner))
        back = _back(stacks, job.device)
        portraits = _join([end.portraits for end in ends], back)
        return Evaluated(_join([end.counts for end in ends], back), portraits)


def lay_out(tables: RowTables, rosters: Sequence[Roster], engine: object) -> None:
    """Plan a coming round, which costs nothing while a GPU is busy with the one before."""
    if not all(speculation.pays_on(roster.device) for roster in rosters):
        return
    if isinstance(engine, Vectorised):
        tables.lay_out(rosters, engine.chunk)
    else:
        for roster in rosters:
            roster.draw()


def _back(stacks: Sequence[Sequence[int]], device: torch.device) -> Tensor | None:
    """Where each client of the cohort stands in the stacks; nothing if they stand in
    their order.
    """
    order = [member for members in stacks for member in members]
    return None if order == sorted(order) else torch.tensor(order, device=device).argsort()


def _stack(
    job: Job, members: Sequence[int], runner: StepRunner
) -> tuple[ClientStack, Blocks, list[list[Step]]]:
    if job.method.net.unmappable:
        layer = job.method.net.unmappable[0]
        raise UserError(
            f'layer "{layer}" of the net cannot be mapped over clients', 'use engine = "sequential"'
        )
    blocks = job.sent.blocks
    if members != list(range(len(job.ids))):
        where = torch.as_tensor(members, device=job.device)
        blocks = map_leaves(lambda value: _rows(value, where), blocks)
    local = job.several(members, each_client_of(job.method))
    if isinstance(runner, Captured):
        local = replace(local, caller=runner.hook)
    return local, blocks, job.plan(members).orders


def each_client_of(method: Method) -> Each:
    """How a function of one client becomes one of a stack."""
    if not is_own(method):
        return vmap

    def each(function: Mapped) -> Mapped:
        def keep_apart(*args: Any) -> Any:
            with OwnTables():
                return function(*args)

        return vmap(keep_apart)

    return each


def _rows(value: Tensor, where: Tensor) -> Tensor:
    """Some clients' copies; where all have the same, a view."""
    return value[: len(where)] if is_repeated(value) else value[where]


def _chunks(job: Job, members: Sequence[int], part: str) -> list[EvalChunk]:
    return chunks_of(*job.part_rows(part, members), chunk_of(job.data))


def _join(trees: Sequence[Any], back: Tensor | None) -> Any:
    """The stacks as one, in the order of the cohort."""
    joined = concatenate(trees)
    return joined if back is None else take(joined, back)
