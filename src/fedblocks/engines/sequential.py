"""The reference engine: clients one after another, plain autograd, nothing padded."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedblocks.core.client import Local, Step
from fedblocks.core.parts import Blocks
from fedblocks.engines.job import Counts, Job, Trained, padded
from fedblocks.engines.orders import steps_of_one
from fedblocks.engines.work import Piece, evaluate_locally, pieces_of, train_locally


@dataclass(frozen=True)
class Sequential:
    """A loop over clients; the debugger's friend."""

    name: str = "sequential"

    def train(self, job: Job, score: str | None = None) -> Trained:
        """Local training of every client; `score` names a part of the data to try the trained models on."""
        found: list[Trained] = []
        blocks: Blocks = {}
        for member in range(len(job.cohort)):
            one = train_locally(job, *_one(job, member), _pieces(job, member, score))
            _put(blocks, one.blocks, member, len(job.cohort))
            found.append(replace(one, blocks={}))  # so that the next client works where this one did, in warm memory
        return Trained(
            blocks,
            _stacked([t.weights for t in found]),
            _stacked([t.wanted for t in found]),
            {**job.sent.bytes_down, **_stacked([t.bytes_down for t in found])},
            _stacked([t.counts for t in found]),
        )

    def evaluate(self, job: Job, part: str) -> Counts:
        """Every view of every client's model, after adaptation."""
        members = range(len(job.cohort))
        return _stacked([evaluate_locally(job, *_one(job, member), _pieces(job, member, part)) for member in members])


def _one(job: Job, member: int) -> tuple[Local, Blocks, list[list[Step]]]:
    blocks = {name: {k: v[member] for k, v in block.items()} for name, block in job.sent.blocks.items()}
    return job.one(member), blocks, [steps_of_one(found, job.device) for found in job.batches[member]]


def _put(stack: Blocks, blocks: Blocks, member: int, count: int) -> None:
    """Write one client's blocks to its place in the stack, which the first client's make."""
    for name, block in blocks.items():
        into = stack.setdefault(name, {})
        for key, value in block.items():
            if key not in into:
                into[key] = value.new_empty(count, *value.shape)
            into[key][member].copy_(value.detach())


def _pieces(job: Job, member: int, part: str | None) -> list[Piece]:
    if part is None:
        return []
    rows, sizes = padded(job.data.parts[part], [job.ids[member]], job.device, torch.double)
    return pieces_of(rows[0], sizes[0])


def _stacked(found: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([one[name] for one in found]) for name in found[0]}
