"""Every instance takes its own way through every layer, between the shared net and a
freshly tuned copy of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from fedblocks.core.description import Paper
from fedblocks.core.net import Net
from fedblocks.core.parts import Blocks
from fedblocks.core.phases import Batch, Phase, Update
from fedblocks.core.pieces import Piece
from fedblocks.methods.flow.instance_routes import mean_route, one_hot
from fedblocks.methods.flow.layer_routes import Layers, Sizes, layers_of
from fedblocks.methods.flow.options import FlowV2Options


@dataclass(frozen=True, eq=False)
class FlowV2(FlowV2Options):
    """Routing per instance and layer, trained on held-out halves, hard at test (Panchal
    et al., 2023).
    """

    paper: ClassVar[Paper] = Paper(
        "Flow: Per-instance Personalized Federated Learning", "Panchal et al.", 2023, "NeurIPS"
    )

    @cached_property
    def layers(self) -> Layers:
        return layers_of(self.net)

    @cached_property
    def routers(self) -> dict[str, Net]:
        sizes = Sizes(self.policy, self.step_policy, self.dense_policy, self.policy_dropout)
        return self.layers.policies(sizes)

    @property
    def copied(self) -> Piece:
        return self.net.whole

    def routed(self, blocks: Blocks, x: Tensor, hard: bool) -> tuple[Tensor, Tensor]:
        def choose(name: str, seen: Tensor) -> Tensor:
            route = torch.softmax(self.routers[name](blocks[name], seen), -1)
            return one_hot(route) if hard else route

        return self.layers.run(blocks["shared"], blocks["local"], choose, x)

    def routes(self, blocks: Blocks, x: Tensor) -> Tensor:
        routes = self.routed(blocks, x, hard=False)[1]
        return mean_route(routes, self.layers.real(routes, x))

    def policy_loss(self, blocks: Blocks, batch: Batch) -> Tensor:
        """The loss of the mixture, and a reward for using the shared branch."""
        logits, routes = self.routed(blocks, batch.x, hard=False)
        # [batch, routes of an instance]
        real = self.layers.real(routes, batch.x) * batch.mask[:, None]
        penalty = -torch.log(routes[..., 0].square() + 1e-6)
        return batch.loss(logits) + self.strength * (penalty * real).sum() / real.sum().clamp(min=1)

    def route_step(self) -> Update:
        return self.step(*self.routers, loss=self.policy_loss)

    def phases(self) -> list[Phase]:
        support, query = ("support", "query") if self.split_data else ("all", "all")
        updates = self.route_step(), self.step("shared", loss=self.shared_loss)
        return [self.tune_local(support), Phase(updates, self.epochs, query)]
