"""What a job works on: a federation of noise, a net, a method."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedblocks.bench.jobs import BenchJob
from fedblocks.core.method import Method
from fedblocks.core.net import Net
from fedblocks.core.private_state import CLIENTS_PER_SHARD, Pack, ShardedState
from fedblocks.core.state import State, initial_private
from fedblocks.data.federation import Federation
from fedblocks.data.rows import Rows
from fedblocks.engines.round import Experiment
from fedblocks.methods import METHODS
from fedblocks.nets import NETS

MOST_ROWS = 60_000  # of the pool; where clients hold more in all, several share rows
LR = 0.01


@dataclass(frozen=True, eq=False)
class Materials:
    """One job, ready to run."""

    job: BenchJob
    experiment: Experiment
    cohort: list[int]

    @property
    def method(self) -> Method:
        return next(iter(self.experiment.methods.values()))

    @property
    def net(self) -> Net:
        return NETS[self.job.net](self.job.shape, self.job.classes, **self.job.net_options)

    @cached_property
    def start(self) -> State:
        """The state before the first timed round; where clients keep something, all of
        them have done so already.
        """
        state = self.experiment.start()
        if not self.job.name.startswith("J8/"):
            return state
        return replace(
            state, private=everybody(self.method, self.job.clients, self.experiment.seed)
        )

    @property
    def examples(self) -> int:
        """Training examples of the cohort."""
        return len(self.cohort) * self.job.examples


def materials(job: BenchJob, device: str) -> Materials:
    """A job with its data on a device; always the same."""
    job = job.on(device)
    net = NETS[job.net](job.shape, job.classes, **job.net_options)
    method = METHODS[job.method](net, lr=LR, batch_size=job.batch, **job.options)
    step = max(1, job.clients // job.cohort)
    cohort = [number * step for number in range(job.cohort)]
    return Materials(job, Experiment.of(method, federation(job).to(device), seed=0), cohort)


def federation(job: BenchJob) -> Federation:
    """Clients of equal size over a pool of noise."""
    validation = max(1, job.examples // 10)
    each = job.examples + validation + job.tests
    rows = min(MOST_ROWS, job.clients * each)
    x, y = _pool(job, rows)
    table = np.arange(job.clients * each, dtype=np.int64).reshape(job.clients, each) % rows
    cuts = np.split(table, [job.examples, job.examples + validation], axis=1)
    train, held, test = (
        Rows(cut.reshape(-1), np.arange(job.clients + 1) * cut.shape[1]) for cut in cuts
    )
    tags = {name: np.arange(job.clients, dtype=np.int64) % 2 for name in METHODS[job.method].tags}
    return Federation(x, y, train, held, test, job.classes, tags=tags)


def _pool(job: BenchJob, rows: int) -> tuple[Tensor, Tensor]:
    noise = torch.Generator().manual_seed(0)
    if job.tokens:
        text = torch.randint(1, job.classes, (rows, job.shape[0] + 1), generator=noise)
        return text[:, :-1].contiguous(), text[:, 1:].contiguous()
    return torch.randn(rows, *job.shape, generator=noise), torch.arange(rows) % job.classes


def everybody(method: Method, clients: int, seed: int) -> ShardedState:
    """Every client keeps blocks of its own, as after many rounds."""
    own = initial_private(method, seed)
    shards = {}
    for first in range(0, clients, CLIENTS_PER_SHARD):
        ids = tuple(range(first, min(clients, first + CLIENTS_PER_SHARD)))
        blocks = {
            n: {k: v.expand(len(ids), *v.shape).clone() for k, v in block.items()}
            for n, block in own.items()
        }
        shards[first // CLIENTS_PER_SHARD] = (Pack(ids, blocks),)
    return ShardedState(shards)
