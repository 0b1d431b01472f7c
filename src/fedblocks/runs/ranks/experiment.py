"""An experiment of which this rank has a part: the server's side is whole, the data are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from fedblocks.core.phases import Phase
from fedblocks.core.random import derive
from fedblocks.core.server import Cohort, bytes_per_slot, gather
from fedblocks.core.state import State
from fedblocks.data.rows import Ints
from fedblocks.engines.job import Job
from fedblocks.engines.round import Experiment


@dataclass(frozen=True, eq=False, kw_only=True)
class RankExperiment(Experiment):
    """Jobs are asked for with all clients of a group, and are for those of this rank."""

    sizes: Ints  # [clients]: training rows of everybody, also of clients of other ranks
    owners: Ints  # [clients]
    rank: int

    @staticmethod
    def part_of(whole: Experiment, sizes: Ints, owners: Ints, rank: int) -> RankExperiment:
        return RankExperiment(
            whole.methods,
            whole.data,
            whole.seed,
            whole.groups,
            whole.share,
            whole.unseen,
            sizes=sizes,
            owners=owners,
            rank=rank,
        )

    @cached_property
    def trained_here(self) -> int:
        """How many clients of this rank can train."""
        own = self.owners == self.rank
        return int(own.sum()) - int(own[list(self.unseen)].sum())

    def own(self, clients: Sequence[int]) -> list[int]:
        """Those of some clients that are of this rank."""
        ids = np.asarray(clients, dtype=np.int64)
        own: list[int] = ids[self.owners[ids] == self.rank].tolist()
        return own

    def cohort(self, clients: Sequence[int], round: int) -> Cohort:
        device = self.data.device
        ids = np.asarray(clients, dtype=np.int64)
        tags = {n: torch.from_numpy(np.array(v[ids])).to(device) for n, v in self.data.tags.items()}
        return Cohort(
            torch.from_numpy(ids).to(device),
            torch.from_numpy(self.sizes[ids]).double().to(device),
            tags,
            self.data.clients - len(self.unseen),
            round,
            derive(self.seed, round, "server"),
            torch.tensor(list(self.unseen), dtype=torch.long, device=device),
        )

    def job(
        self,
        group: str,
        clients: Sequence[int],
        state: State,
        phases: list[Phase],
        training: bool,
        purpose: str,
    ) -> Job:
        method = self.methods[group]
        cohort = self.cohort(clients, state.round)
        mine = self.owners[np.asarray(clients, dtype=np.int64)] == self.rank
        places = torch.from_numpy(np.flatnonzero(mine)).to(cohort.ids.device)
        return Job(
            method=method,
            phases=phases,
            cohort=cohort.take(places),
            sent=gather(method, state, cohort, self.beginnings[group], places),
            bytes_per_slot=bytes_per_slot(method, state),
            data=self.data,
            seed=self.seed,
            training=training,
            purpose=purpose,
            tables=self.tables,
        )
