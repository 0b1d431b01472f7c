"""Personal models near a shared one, which follows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from fedblocks.core.blocks import Block, Private, Shared
from fedblocks.core.client import Client
from fedblocks.core.description import Paper
from fedblocks.core.optimizers import SGD
from fedblocks.core.options import AtLeast, Help, Positive
from fedblocks.core.parts import Blocks, is_statistic
from fedblocks.core.phases import Phase, Pull, Update
from fedblocks.core.rules import MovingAverage
from fedblocks.core.schedules import Schedule
from fedblocks.methods._common.two_models import Pair


@dataclass(frozen=True, eq=False)
class PFedMe(Pair):
    """Moreau envelopes: solve for a personal model, then move the shared one to it
    (Dinh et al., 2020).
    """

    paper: ClassVar[Paper] = Paper(
        "Personalized Federated Learning with Moreau Envelopes", "Dinh et al.", 2020, "NeurIPS"
    )

    lr: Annotated[
        float | Schedule,
        Positive(),
        Help("eta: of the shared model's steps to the personal one", usual="0.005"),
    ] = 0.005
    batch_size: Annotated[int, AtLeast(1), Help("examples in a batch", usual="20")] = 20
    strength: Annotated[
        float, AtLeast(0), Help("lambda: of the pull between the two models", usual="5 to 30")
    ] = 15.0
    inner_lr: Annotated[
        float | Schedule, Positive(), Help("eta_p: of the personal model's steps", usual="0.09")
    ] = 0.09
    inner_steps: Annotated[
        int, AtLeast(1), Help("K: steps of the personal model on each batch", usual="5")
    ] = 5
    local_rounds: Annotated[
        int,
        AtLeast(0),
        Help("R: batches in a round; 0: all batches of `epochs` epochs", usual="20"),
    ] = 20
    beta: Annotated[
        float,
        Positive(),
        Help("server: a step of this size from the old model to the average", usual="1 to 2"),
    ] = 1.0

    def blocks(self) -> dict[str, Block]:
        return {
            "shared": Shared(self.net.whole, rule=MovingAverage(self.beta)),
            "personal": Private(self.net.whole),
        }

    def phases(self) -> list[Phase]:
        return [self.local(self.solve, self.follow)]

    def joining(self) -> list[Phase]:
        return [self.local(self.solve)]  # the shared model is only read

    def local(self, *updates: Update) -> Phase:
        return Phase(updates, self.epochs, steps=self.local_rounds or None, begin=self.from_shared)

    def from_shared(self, blocks: Blocks) -> Blocks:
        """The personal model starts each round where the shared one is, and goes on
        from batch to batch.
        """
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
        """The shared copy never sees data: its running statistics are those of the
        personal model.
        """
        seen = {name: value for name, value in blocks["personal"].items() if is_statistic(name)}
        return {**blocks, "shared": {**blocks["shared"], **seen}}

    def degenerate(self) -> list[str]:
        return ["strength = 0 never moves pFedMe's shared model"] if self.strength == 0 else []
