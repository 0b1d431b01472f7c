"""Every instance takes its own way through every layer, between the shared net and a freshly tuned copy of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from fedblocks.core.errors import UserError
from fedblocks.core.method import Paper
from fedblocks.core.net import Net, Piece
from fedblocks.core.parts import Blocks
from fedblocks.core.phases import Batch, Phase, Update
from fedblocks.methods.layerwise import Layers, Sizes, layers_of
from fedblocks.methods.routed import Routed
from fedblocks.methods.routing import mean_route, one_hot


@dataclass(frozen=True, eq=False)
class FlowV2(Routed):
    """Routing per instance and layer, trained on held-out halves, hard at test (Panchal et al., 2023)."""

    paper: ClassVar[Paper] = Paper(
        "Flow: Per-instance Personalized Federated Learning", "Panchal et al.", 2023, "NeurIPS"
    )

    local_epochs: int = 3  # E: of tuning the local copy
    router_epochs: int = 3  # E: of training the policy before an evaluation
    split_data: bool = True  # tune the local copy on one half of the examples, train the rest on the other
    eval_routing: str = "hard"  # at test: the "hard" choice of the better branch, or "soft" mixtures
    strength: float = 0.001  # lambda: of the reward for the shared branch
    policy: tuple[int, ...] = (350, 150, 50)  # hidden layers of the policy that sees the whole input (chains)
    step_policy: tuple[int, ...] = (500, 250, 100, 50)  # hidden layers of the policy of each step (LSTMs)
    dense_policy: tuple[int, ...] = (75, 30, 10)  # hidden layers of the policy of the layers after an LSTM
    policy_dropout: float = 0.3  # in the policy of each step, while it trains

    def __post_init__(self) -> None:
        if self.strength < 0 or not 0 <= self.policy_dropout < 1:
            raise UserError("strength < 0, or policy_dropout outside [0, 1)", "0.001 and 0.3 are usual")
        if min(*self.policy, *self.step_policy, *self.dense_policy, 1) < 1:
            raise UserError("the hidden layers of a policy need at least one unit", "e.g. policy = [350, 150, 50]")
        super().__post_init__()

    @cached_property
    def layers(self) -> Layers:
        return layers_of(self.net)

    @cached_property
    def routers(self) -> dict[str, Net]:
        return self.layers.policies(Sizes(self.policy, self.step_policy, self.dense_policy, self.policy_dropout))

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
        real = self.layers.real(routes, batch.x) * batch.mask[:, None]  # [batch, routes of an instance]
        penalty = -torch.log(routes[..., 0].square() + 1e-6)
        return batch.loss(logits) + self.strength * (penalty * real).sum() / real.sum().clamp(min=1)

    def route_step(self) -> Update:
        return self.step(*self.routers, loss=self.policy_loss)

    def phases(self) -> list[Phase]:
        support, query = ("support", "query") if self.split_data else ("all", "all")
        updates = self.route_step(), self.step("shared", loss=self.shared_loss)
        return [self.tune_local(support), Phase(updates, self.epochs, query)]
