"""The reference engine: clients one after another, plain autograd, nothing padded."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedblocks.core.client import ClientStack, Step
from fedblocks.core.local_round import StepRunner, step_by_step
from fedblocks.core.parts import Blocks
from fedblocks.engines.batching import steps_of_one
from fedblocks.engines.job import Evaluated, Job, Trained, padded
from fedblocks.engines.local_work import EvalChunk, adapted, evaluate_locally, pieces_of, train_locally
from fedblocks.engines.replay.replayed import Replayed


@dataclass(frozen=True)
class Sequential:
    """A loop over clients; with `replay` off the debugger's friend, with the same results."""

    name: str = "sequential"
    replay: bool = True  # on a CPU, write down the operations of a step and repeat them
    worth: int = 8  # steps of one kind in a round before they are written down
    known: dict[tuple[int, str], Replayed] = field(default_factory=dict, compare=False, repr=False)

    def runner(self, job: Job) -> StepRunner:
        """How the steps of a job are run."""
        if not self.replay or job.device.type != "cpu":
            return step_by_step
        return self.known.setdefault((id(job.method), job.purpose), Replayed(job.method, self.worth))

    def train(self, job: Job, score: str | None = None) -> Trained:
        """Local training of every client; `score` names a part of the data to try the trained models on."""
        found: list[Trained] = []
        blocks: Blocks = {}
        runner = self.runner(job)
        for member in range(len(job.cohort)):
            one = train_locally(job, *_one(job, member), _pieces(job, member, score), runner)
            _put(blocks, one.blocks, member, len(job.cohort))
            found.append(replace(one, blocks={}))  # so that the next client works where this one did, in warm memory
        return Trained(
            blocks,
            _stacked([t.weights for t in found]),
            _stacked([t.wanted for t in found]),
            {**job.sent.bytes_down, **_stacked([t.bytes_down for t in found])},
            _stacked([t.counts for t in found]),
        )

    def evaluate(self, job: Job, part: str) -> Evaluated:
        """Every view of every client's model, after adaptation."""
        members, runner = range(len(job.cohort)), self.runner(job)
        found = [evaluate_locally(job, *_one(job, m), _pieces(job, m, part), runner) for m in members]
        return Evaluated(_stacked([e.counts for e in found]), _stacked([e.portraits for e in found]))


def adapted_blocks(job: Job, member: int) -> Blocks:
    """The blocks of one client of a job as its evaluation uses them."""
    return adapted(job, *_one(job, member))


def _one(job: Job, member: int) -> tuple[ClientStack, Blocks, list[list[Step]]]:
    blocks = {name: {k: v[member] for k, v in block.items()} for name, block in job.sent.blocks.items()}
    return job.one(member), blocks, [steps_of_one(found, job.device) for found in job.batches[member]]


def _put(stack: Blocks, blocks: Blocks, member: int, count: int) -> None:
    """Write one client's blocks to its place in the stack, which the first client's make."""
    for name, block in blocks.items():
        into = stack.setdefault(name, {})
        for key, value in block.items():
            if count == 1:
                into[key] = value.detach().unsqueeze(0)
                continue
            if key not in into:
                into[key] = value.new_empty(count, *value.shape)
            into[key][member].copy_(value.detach())


def _pieces(job: Job, member: int, part: str | None) -> list[EvalChunk]:
    if part is None:
        return []
    rows, sizes = padded(job.data.parts[part], [job.ids[member]], job.device, torch.double)
    return pieces_of(rows[0], sizes[0])


def _stacked(found: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([one[name] for one in found]) for name in found[0]}
