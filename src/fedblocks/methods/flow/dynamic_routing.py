"""One dynamic net for everybody: two federated branches, a router, fine-tuned by each
client before it is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fedblocks.core.blocks import Block, Pool, Shared
from fedblocks.core.client import Client
from fedblocks.core.description import Paper
from fedblocks.core.method import Method, join
from fedblocks.core.net import Net
from fedblocks.core.options import AtLeast, Help, Positive
from fedblocks.core.parts import Blocks
from fedblocks.core.phases import Phase
from fedblocks.core.pieces import Piece
from fedblocks.core.schedules import Schedule
from fedblocks.methods.flow.instance_routes import PICTURED, Branches, branches_of, linear_router
from fedblocks.methods.flow.options import MixCell, Temperature


@dataclass(frozen=True, eq=False)
class DynamicRouting(Method):
    """Flow's baseline: both branches are federated, and start apart (Panchal and Guan, 2022)."""

    paper: ClassVar[Paper] = Paper(
        "Flow: Fine-grained Personalized Federated Learning through Dynamic Routing",
        "Panchal, Guan",
        2022,
        "CrossFL at MLSys (poster)",
    )
    personal_by: ClassVar[str] = "instance"

    tau: Temperature = 0.75
    mix_cell: MixCell = True
    tune_epochs: Annotated[
        int, AtLeast(0), Help("of fine-tuning before an evaluation", usual="1, the poster's")
    ] = 1
    tune_lr: Annotated[
        float | Schedule | None,
        Positive(),
        Help("of fine-tuning; default: the local learning rate"),
    ] = None

    def __post_init__(self) -> None:
        _ = self.router  # a net that cannot be routed is refused here

    @cached_property
    def branches(self) -> Branches:
        return branches_of(self.net, self.mix_cell)

    @cached_property
    def router(self) -> Net:
        return linear_router(self.net, self.branches.inputs)

    @cached_property
    def common(self) -> Piece:
        """What the branches share: embedding and decoder, or the head."""
        return self.net.piece(set(self.net.names) - set(self.branches.recurrent.names))

    def blocks(self) -> dict[str, Block]:
        # independent starts: equal ones would never part
        both = Pool(self.branches.recurrent, size=2)
        router = Shared(self.router.whole)
        return {"common": Shared(self.common), "branches": both, "router": router}

    def routed(self, blocks: Blocks, x: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, and how much of each branch is in them: [batch, steps, 2]."""
        first, second = (
            {name: v[slot] for name, v in blocks["branches"].items()} for slot in (0, 1)
        )
        choose = lambda seen: torch.softmax(self.router(blocks["router"], seen) / self.tau, -1)
        return self.branches.run(join(blocks["common"], first), second, choose, x)

    def predict(self, blocks: Blocks, x: Tensor) -> Tensor:
        return self.routed(blocks, x)[0]

    def routes(self, blocks: Blocks, x: Tensor) -> Tensor:
        """Each instance's mean route: [batch, 2]."""
        return self.branches.mean_route(self.routed(blocks, x)[1], x)

    def portrait(self, blocks: Blocks, client: Client) -> dict[str, Tensor]:
        seen = client.first(PICTURED)
        return {"route": seen.mean(self.routes(blocks, seen.x))}

    def phases(self) -> list[Phase]:
        return [Phase((self.step("common", "branches", "router"),), self.epochs)]

    def adaptation(self) -> list[Phase]:
        tune = self.step("common", "branches", "router", lr=self.tune_lr)
        return [Phase((tune,), self.tune_epochs)]
