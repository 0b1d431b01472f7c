"""Every instance, at every step, takes its own mixture of the shared encoder and a freshly tuned
local one.

What a round begins with (copy the shared net) and what precedes an inference stand in `base`, for
both versions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from fedblocks.core.blocks import Block, Fresh
from fedblocks.core.description import Paper
from fedblocks.core.net import Net
from fedblocks.core.optimizers import Optimizer
from fedblocks.core.parts import Blocks
from fedblocks.core.phases import Phase, Update
from fedblocks.core.pieces import Piece
from fedblocks.methods.flow.instance_routes import (
    Branches,
    Paced,
    branches_of,
    linear_router,
    one_hot,
)
from fedblocks.methods.flow.options import FlowOptions


@dataclass(frozen=True, eq=False)
class Flow(FlowOptions):
    """Routing per instance between local and global parameters; clients keep nothing
    (Panchal and Guan, 2022).
    """

    paper: ClassVar[Paper] = Paper(
        "Flow: Fine-grained Personalized Federated Learning through Dynamic Routing",
        "Panchal, Guan",
        2022,
        "CrossFL at MLSys (poster)",
    )

    @cached_property
    def branches(self) -> Branches:
        return branches_of(self.net, self.mix_cell)

    @cached_property
    def routers(self) -> dict[str, Net]:
        return {"router": linear_router(self.net, self.branches.inputs)}

    @property
    def copied(self) -> Piece:  # w_local: the encoder, with or without its embedding
        return self.branches.encoder if self.tune_local_embedding else self.branches.recurrent

    def blocks(self) -> dict[str, Block]:
        if self.router_scope == "federated":
            return super().blocks()
        return {**super().blocks(), "router": Fresh(self.routers["router"].whole)}

    def routed(self, blocks: Blocks, x: Tensor, hard: bool) -> tuple[Tensor, Tensor]:
        def choose(seen: Tensor) -> Tensor:  # r_t = softmax(f_theta([x_t; h_t-1]) / tau)
            # [batch, 2]
            route = torch.softmax(self.routers["router"](blocks["router"], seen) / self.tau, -1)
            return one_hot(route) if hard else route

        return self.branches.run(blocks["shared"], blocks["local"], choose, x)

    def routes(self, blocks: Blocks, x: Tensor) -> Tensor:
        return self.branches.mean_route(self.routed(blocks, x, hard=False)[1], x)

    # tune w_local; then theta and w_global through the mixture, w_local fixed
    def phases(self) -> list[Phase]:
        support, query = ("support", "query") if self.split_data else ("all", "all")
        updates = [self.step("router", "shared", optimizer=self.pacing)]
        if self.global_update_path == "global_only":
            updates = [self.route_step(), self.step("shared", loss=self.shared_loss)]
        return [self.tune_local(support), Phase(tuple(updates), self.epochs, query)]

    def route_step(self) -> Update:
        return self.step("router", optimizer=self.pacing)

    @property
    def pacing(self) -> Optimizer:
        """The local optimizer, in which the router has its own learning rate."""
        return Paced(self.optimizer, len(self.routers["router"].names), self.router_pace)
