"""What one client does in a round: the local work of a simulation, for a cohort of one."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedblocks.core.blocks import Federated, Fresh, Pool, Private
from fedblocks.core.method import Method
from fedblocks.core.parts import OPTIMIZER, Blocks
from fedblocks.core.phases import Phase
from fedblocks.core.server import Download
from fedblocks.core.state import initial_copy, statistics_name
from fedblocks.engines.batching import steps_of_one
from fedblocks.engines.job import Evaluated, Job
from fedblocks.engines.local_work import adapt
from fedblocks.engines.round import Experiment
from fedblocks.flower.wire.messages import Counts, DownloadHeader, Picture, Slots
from fedblocks.runs.rounds import SMALL


@dataclass(frozen=True, eq=False)
class RoundWork:
    """The work that a download asks for, with what the client holds."""

    client: int
    method: Method
    experiment: Experiment  # of this client alone
    header: DownloadHeader
    held: Blocks
    more: Blocks = field(default_factory=dict)  # pools with the slots that it asked for

    def training(self) -> Job:
        return self._job(self.method.phases(), training=True, purpose="train")

    def trial(self) -> Job:
        """Return the job in which models are evaluated: after adaptation, or after joining."""
        if self.header.joining:
            return self._job(self.method.joining(), training=True, purpose="join")
        return self._job(self.method.adaptation(), training=False, purpose="adapt")

    def join(self) -> Blocks:
        """Return the whole model of a client that joins."""
        job = self.trial()
        sent = {
            name: {k: v[0] for k, v in block.items()} for name, block in job.sent.blocks.items()
        }
        steps = [steps_of_one(batches, job.device) for batches in job.batches[0]]
        return {**adapt(job, job.one(0), sent, steps), **job.sent.frozen}

    def wanted_slots(self, job: Job) -> Slots:
        """Return the slots of pools on request that the client needs for a job."""
        wanted: dict[str, Tensor] = job.one(0).call(self.method.wants, self.held)
        return {
            name: tuple(torch.nonzero(mask).flatten().tolist()) for name, mask in wanted.items()
        }

    @property
    def _frozen(self) -> Blocks:
        return next(iter(self.experiment.beginnings.values())).frozen

    def _job(self, phases: list[Phase], *, training: bool, purpose: str) -> Job:
        blocks = {n: {k: v[None] for k, v in b.items()} for n, b in self.held.items()}
        return Job(
            method=self.method,
            phases=phases,
            cohort=self.experiment.cohort([self.client], self.header.round),
            sent=Download(blocks, {}, self.more, {}, self._frozen),
            bytes_per_slot=dict.fromkeys(self.more, 0),  # bytes are counted where they are sent
            data=self.experiment.data,
            seed=self.experiment.seed,
            training=training,
            purpose=purpose,
        )


def starting_blocks(
    method: Method, seed: int, received: Blocks, kept: Blocks, fresh: Blocks
) -> Blocks:
    """Return what a client starts a round with: what came, what it kept, what starts anew.

    `fresh` is what a client that never took part holds.
    """
    held: Blocks = {name: block for name, block in kept.items() if name.startswith(OPTIMIZER)}
    for name, block in method.blocks().items():
        match block:
            case Private():
                held[name] = kept.get(name, fresh[name])
            case Fresh() if block.part is not None:
                held[name] = initial_copy(block.part, seed)
            case Pool(on_request=True):
                pass
            case _ if isinstance(block, Federated):
                own = kept.get(statistics_name(name)) or fresh.get(statistics_name(name)) or {}
                held[name] = {**received.get(name, {}), **own}
    return held


def counts_by_view(evaluated: Evaluated) -> dict[str, Counts]:
    """Return how the models of the only client did, by "part/view"."""
    counts: dict[str, Counts] = {}
    for part, views in evaluated.counts.items():
        counts |= {f"{part}/{view}": counts_of_one(values) for view, values in views.items()}
    return counts


def counts_of_one(values: Tensor) -> Counts:
    """Return the counts and metrics of the only client; values: [1, 3 + measured]."""
    return tuple(values[0].tolist())


def draw_pictures(method: Method, held: Blocks, evaluated: Evaluated) -> dict[str, Picture]:
    """Return what a report draws of a model: its portraits, and small blocks that the client
    keeps.
    """
    drawn = {name: values[0] for name, values in evaluated.portraits.items()}
    for name, block in method.blocks().items():
        if isinstance(block, Private) and name not in drawn:
            drawn[name] = torch.cat([v.flatten() for v in held[name].values()])
    small = {name: value.flatten() for name, value in drawn.items() if value.numel() <= SMALL}
    return {name: tuple(map(float, value.tolist())) for name, value in small.items()}
