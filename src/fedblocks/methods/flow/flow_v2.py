"""Every instance takes its own way through every layer, between the shared net and a
freshly tuned copy of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from fedblocks.core.description import Paper
from fedblocks.core.net import Net
from fedblocks.core.options import AtLeast, Below, Help
from fedblocks.core.parts import Blocks
from fedblocks.core.phases import Batch, Phase, Update
from fedblocks.core.pieces import Piece
from fedblocks.methods.flow.base import Routed
from fedblocks.methods.flow.instance_routes import mean_route, one_hot
from fedblocks.methods.flow.layer_routes import Layers, Sizes, layers_of


@dataclass(frozen=True, eq=False)
class FlowV2(Routed):
    """Routing per instance and layer, trained on held-out halves, hard at test (Panchal
    et al., 2023).
    """

    paper: ClassVar[Paper] = Paper(
        "Flow: Per-instance Personalized Federated Learning", "Panchal et al.", 2023, "NeurIPS"
    )

    local_epochs: Annotated[
        int, AtLeast(0), Help("E: of tuning the local copy", usual="1 to 5")
    ] = 3
    router_epochs: Annotated[
        int, AtLeast(0), Help("E: of training the policy before an evaluation", usual="1 to 5")
    ] = 3
    split_data: Annotated[
        bool, Help("tune the local copy on one half of the examples, train the rest on the other")
    ] = True
    eval_routing: Annotated[
        Literal["soft", "hard"],
        Help('at test: the "hard" choice of the better branch, or "soft" mixtures'),
    ] = "hard"
    strength: Annotated[
        float, AtLeast(0), Help("lambda: of the reward for the shared branch", usual="0.001")
    ] = 0.001
    policy: Annotated[
        tuple[int, ...],
        AtLeast(1),
        Help(
            "hidden layers of the policy that sees the whole input (chains)",
            usual="[350, 150, 50]",
        ),
    ] = (350, 150, 50)
    step_policy: Annotated[
        tuple[int, ...],
        AtLeast(1),
        Help("hidden layers of the policy of each step (LSTMs)", usual="[500, 250, 100, 50]"),
    ] = (500, 250, 100, 50)
    dense_policy: Annotated[
        tuple[int, ...],
        AtLeast(1),
        Help("hidden layers of the policy of the layers after an LSTM", usual="[75, 30, 10]"),
    ] = (75, 30, 10)
    policy_dropout: Annotated[
        float,
        AtLeast(0),
        Below(1),
        Help("in the policy of each step, while it trains", usual="0.3"),
    ] = 0.3

    @cached_property
    def layers(self) -> Layers:
        return layers_of(self.net)

    @cached_property
    def routers(self) -> dict[str, Net]:
        return self.layers.policies(
            Sizes(self.policy, self.step_policy, self.dense_policy, self.policy_dropout)
        )

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
