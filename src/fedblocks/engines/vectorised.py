"""The fast engine: a whole cohort as one stack, mapped with `vmap`, in chunks that fit the memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from fedblocks.core.client import ClientStack, Step
from fedblocks.core.errors import UserError
from fedblocks.core.local_round import StepRunner, step_by_step
from fedblocks.core.parts import Blocks
from fedblocks.engines.batching import steps_of_stack
from fedblocks.engines.cuda_graphs import Captured
from fedblocks.engines.job import Evaluated, Job, Trained, padded
from fedblocks.engines.local_work import EvalChunk, evaluate_locally, pieces_of, train_locally


@dataclass(frozen=True)
class Vectorised:
    """All clients of a chunk at once."""

    name: str = "vectorised"
    chunk: int = 64  # clients in one stack
    graphs: bool = True  # on a GPU, record steps and replay them
    recorded: dict[int, Captured] = field(default_factory=dict, compare=False, repr=False)  # by the method's identity

    def runner(self, job: Job) -> StepRunner:
        """How the phases of a job are run: as recorded graphs where there is a GPU."""
        if not self.graphs or job.device.type != "cuda":
            return step_by_step
        known = self.recorded.setdefault(
            id(job.method), Captured(job.method)
        )  # holds the method, so the id stays its own
        return known

    def train(self, job: Job, score: str | None = None) -> Trained:
        """Local training of the whole cohort; `score` names a part of the data to try the trained models on."""
        chunks, runner = _chunks(job, self.chunk), self.runner(job)
        found = [
            train_locally(job, *_stack(job, members, runner), _pieces(job, members, score), runner)
            for members in chunks
        ]
        back = _back(chunks, job.device)
        names = found[0].blocks
        return Trained(
            {n: _joined([t.blocks[n] for t in found], back) for n in names},
            _joined([t.weights for t in found], back),
            _joined([t.wanted for t in found], back),
            {**job.sent.bytes_down, **_joined([t.bytes_down for t in found], back)},
            _joined([t.counts for t in found], back),
        )

    def evaluate(self, job: Job, part: str) -> Evaluated:
        """Every view of every client's model, after adaptation."""
        chunks, runner = _chunks(job, self.chunk), self.runner(job)
        found = [
            evaluate_locally(job, *_stack(job, members, runner), _pieces(job, members, part), runner)
            for members in chunks
        ]
        back = _back(chunks, job.device)
        return Evaluated(_joined([e.counts for e in found], back), _joined([e.portraits for e in found], back))


def _chunks(job: Job, size: int) -> list[list[int]]:
    """Clients of like size together, longest first, so that little is padded and steps end one client after another."""
    order = np.argsort(-job.sizes, kind="stable").tolist()
    return [order[start : start + size] for start in range(0, len(order), size)]


def _back(chunks: Sequence[Sequence[int]], device: torch.device) -> Tensor | None:
    """Where each client of the cohort stands in the chunks; nothing if they stand in their order."""
    order = [member for members in chunks for member in members]
    return None if order == sorted(order) else torch.tensor(order, device=device).argsort()


def _stack(job: Job, members: Sequence[int], runner: StepRunner) -> tuple[ClientStack, Blocks, list[list[Step]]]:
    if job.method.net.unmappable:
        layer = job.method.net.unmappable[0]
        raise UserError(f'layer "{layer}" of the net cannot be mapped over clients', 'use engine = "sequential"')
    blocks = job.sent.blocks
    if members != list(range(len(job.ids))):
        where = torch.as_tensor(members, device=job.device)
        blocks = {name: {k: _rows(v, where) for k, v in block.items()} for name, block in blocks.items()}
    by_phase = zip(*(job.batches[member] for member in members), strict=True)
    local = job.several(members, vmap)
    if isinstance(runner, Captured):
        local = replace(local, caller=runner.hook)
    return local, blocks, [steps_of_stack(found, job.device) for found in by_phase]


def _rows(value: Tensor, where: Tensor) -> Tensor:
    """Some clients' copies; where all have the same, a view."""
    return value[: len(where)] if value.stride(0) == 0 else value[where]


def _pieces(job: Job, members: Sequence[int], part: str | None) -> list[EvalChunk]:
    if part is None:
        return []
    return pieces_of(*padded(job.data.parts[part], [job.ids[m] for m in members], job.device, torch.double))


def _joined(found: Sequence[dict[str, Tensor]], back: Tensor | None) -> dict[str, Tensor]:
    """The chunks as one stack, in the order of the cohort."""
    whole = {name: torch.cat([one[name] for one in found]) if found[1:] else found[0][name] for name in found[0]}
    return whole if back is None else {name: value[back] for name, value in whole.items()}
