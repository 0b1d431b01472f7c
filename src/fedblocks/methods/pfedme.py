"""Personal models near a shared one, which follows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedblocks.core.blocks import Block, Private, Shared
from fedblocks.core.client import Client
from fedblocks.core.errors import UserError
from fedblocks.core.method import Paper
from fedblocks.core.optimizers import SGD
from fedblocks.core.parts import Blocks, is_statistic
from fedblocks.core.phases import Phase, Pull, Update
from fedblocks.core.rules import MovingAverage
from fedblocks.core.schedules import Schedule
from fedblocks.methods.pair import Pair


@dataclass(frozen=True, eq=False)
class PFedMe(Pair):
    """Moreau envelopes: solve for a personal model, then move the shared one to it (Dinh et al., 2020)."""

    paper: ClassVar[Paper] = Paper(
        "Personalized Federated Learning with Moreau Envelopes", "Dinh et al.", 2020, "NeurIPS"
    )
    in_steps_only: ClassVar[tuple[str, ...]] = ("inner_lr", "strength")

    lr: float | Schedule = 0.005  # eta: of the shared model's steps to the personal one
    batch_size: int = 20
    strength: float = 15.0  # lambda: of the pull between the two models
    inner_lr: float | Schedule = 0.09  # eta_p: of the personal model's steps
    inner_steps: int = 5  # K: steps of the personal model on each batch
    local_rounds: int = 20  # R: batches in a round; 0: all batches of `epochs` epochs
    beta: float = 1.0  # server: a step of this size from the old model to the average

    def __post_init__(self) -> None:
        if self.strength < 0:
            raise UserError(f"strength = {self.strength} must not be negative", "5 to 30 are usual")
        if self.inner_steps < 1:
            raise UserError(f"inner_steps = {self.inner_steps} must be at least 1", "5 is usual")
        if self.local_rounds < 0:
            raise UserError(f"local_rounds = {self.local_rounds} must not be negative", "20 is usual, 0: whole epochs")
        if self.beta <= 0:
            raise UserError(f"beta = {self.beta} would never move the shared model", "1 is plain averaging, 2 is usual")

    def blocks(self) -> dict[str, Block]:
        return {"shared": Shared(self.net.whole, rule=MovingAverage(self.beta)), "personal": Private(self.net.whole)}

    def phases(self) -> list[Phase]:
        return [self.local(self.solve, self.follow)]

    def joining(self) -> list[Phase]:
        return [self.local(self.solve)]  # the shared model is only read

    def local(self, *updates: Update) -> Phase:
        return Phase(updates, self.epochs, steps=self.local_rounds or None, begin=self.from_shared)

    def from_shared(self, blocks: Blocks) -> Blocks:
        """The personal model starts each round where the shared one is, and goes on from batch to batch."""
        return {**blocks, "personal": blocks["shared"]}

    @property
    def solve(self) -> Update:
        pull = Pull("personal", to="shared", strength=self.strength, live=True)
        return self.step("personal", lr=self.inner_lr, pull=pull, repeat=self.inner_steps)

    @property
    def follow(self) -> Update:
        pull = Pull("shared", to="personal", strength=self.strength, live=True)
        return Update(("shared",), None, self.lr, SGD(), pull)

    def finish(self, blocks: Blocks, start: Blocks, client: Client) -> Blocks:
        """The shared copy never sees data: its running statistics are those of the personal model."""
        seen = {name: value for name, value in blocks["personal"].items() if is_statistic(name)}
        return {**blocks, "shared": {**blocks["shared"], **seen}}

    def degenerate(self) -> list[str]:
        return ["strength = 0 never moves pFedMe's shared model"] if self.strength == 0 else []
