"""What a stack of clients does in a round whatever it is sent: its batches, noise and steps.

Nothing of it depends on models, so it is laid out while a GPU is busy with the round before.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedblocks.core.client import Step
from fedblocks.core.method import Method
from fedblocks.core.phases import Phase
from fedblocks.core.random import derive
from fedblocks.engines.batching import Draw, Positions, batches, steps_of_stack
from fedblocks.engines.devices import send

# the seed of a run, its round, and a client's number in it: what its randomness depends on
Origin = tuple[int, int, int]
Sizes = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class StackPlan:
    """What the clients of a stack do, in its order; computed when it is first needed."""

    batches: Sequence[Sequence[Sequence[Positions]]]  # of each client, phase by phase
    origins: Sequence[Origin]
    purpose: str
    device: torch.device
    dtype: torch.dtype

    @cached_property
    def keys(self) -> Tensor:
        """[clients]: of their noise."""
        keys = [derive(*origin, self.purpose, "noise") for origin in self.origins]
        return send(torch.tensor(keys), self.device)

    @cached_property
    def counts(self) -> Tensor:
        """[clients]: how many steps each does."""
        counts = [sum(map(len, own)) for own in self.batches]
        return send(torch.tensor(counts, dtype=self.dtype), self.device)

    @cached_property
    def orders(self) -> list[list[Step]]:
        """The steps of each phase; clients with more batches must stand first."""
        return [steps_of_stack(own, self.device) for own in zip(*self.batches, strict=True)]

    def lay_out(self) -> None:
        """Compute all of it now."""
        _ = self.keys, self.counts, self.orders


@dataclass(frozen=True, eq=False)
class Roster:
    """Clients of one method in one round, before anybody knows what they are sent."""

    method: Method
    phases: Sequence[Phase]
    purpose: str  # names the stream of randomness: "train", "adapt", "join"
    origins: Sequence[Origin]
    sizes: Sizes  # [clients]: training examples
    device: torch.device

    def batches(self, member: int) -> list[list[Positions]]:
        """The batches of one client, phase by phase."""
        draw = Draw(*self.origins[member], self.purpose)
        count = int(self.sizes[member])
        return [
            batches(self.method, phase, number, count, draw)
            for number, phase in enumerate(self.phases)
        ]

    def draw(self) -> None:
        """Draw the batches of everybody, which are remembered for a while."""
        for member in range(len(self.origins)):
            self.batches(member)

    def stacks(self, size: int) -> list[list[int]]:
        """Clients of like size together, longest first, so that little is padded and steps
        end one client after another.
        """
        order = np.argsort(-self.sizes, kind="stable").tolist()
        return [order[start : start + size] for start in range(0, len(order), size)]

    def plan(self, members: Sequence[int]) -> StackPlan:
        own = [self.batches(m) for m in members]
        origins = [self.origins[m] for m in members]
        return StackPlan(own, origins, self.purpose, self.device, self.method.net.dtype)

    def key(self, members: Sequence[int]) -> Hashable:
        """What a plan depends on; whoever keeps plans must keep the method, too."""
        return id(self.method), self.purpose, tuple(self.origins[m] for m in members)


def join_rosters(rosters: Sequence[Roster]) -> Roster:
    """The clients of several lanes side by side."""
    first = rosters[0]
    origins = [origin for roster in rosters for origin in roster.origins]
    sizes = np.concatenate([roster.sizes for roster in rosters])
    return Roster(first.method, first.phases, first.purpose, origins, sizes, first.device)
