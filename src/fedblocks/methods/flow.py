"""Every instance, at every step, takes its own mixture of the shared encoder and a freshly tuned local one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from fedblocks.core.blocks import Block, Fresh
from fedblocks.core.errors import UserError
from fedblocks.core.method import Paper
from fedblocks.core.net import Net, Piece
from fedblocks.core.optimizers import Optimizer
from fedblocks.core.parts import Blocks
from fedblocks.core.phases import Phase, Update
from fedblocks.methods.routed import Routed, one_of
from fedblocks.methods.routing import Branches, Paced, branches_of, linear_router, one_hot


@dataclass(frozen=True, eq=False)
class Flow(Routed):
    """Routing per instance between local and global parameters; clients keep nothing (Panchal and Guan, 2022)."""

    paper: ClassVar[Paper] = Paper(
        "Flow: Fine-grained Personalized Federated Learning through Dynamic Routing",
        "Panchal, Guan",
        2022,
        "CrossFL at MLSys (poster)",
    )

    tau: float = 0.75  # temperature of the route
    router_pace: float = 1.0  # the router's learning rate, as a multiple of the local learning rate
    router_scope: str = "federated"  # the router is "federated", or every client starts it anew: "local_reinit"
    tune_local_embedding: bool = True  # the local copy has an embedding of its own
    mix_cell: bool = True  # the LSTM's cell state is mixed like its output; else each branch keeps its own
    global_update_path: str = "personalised"  # the shared net learns through the mixture, or alone: "global_only"

    def __post_init__(self) -> None:
        if self.tau <= 0 or self.router_pace <= 0:
            raise UserError("tau and router_pace must be above 0", "tau = 0.75 is the poster's")
        one_of("router_scope", self.router_scope, ("federated", "local_reinit"))
        one_of("global_update_path", self.global_update_path, ("personalised", "global_only"))
        super().__post_init__()

    @cached_property
    def branches(self) -> Branches:
        return branches_of(self.net, self.mix_cell)

    @cached_property
    def routers(self) -> dict[str, Net]:
        return {"router": linear_router(self.net, self.branches.inputs)}

    @property
    def copied(self) -> Piece:
        return self.branches.encoder if self.tune_local_embedding else self.branches.recurrent

    def blocks(self) -> dict[str, Block]:
        anew = {"router": Fresh(self.routers["router"].whole)} if self.router_scope == "local_reinit" else {}
        return {**super().blocks(), **anew}

    def routed(self, blocks: Blocks, x: Tensor, hard: bool) -> tuple[Tensor, Tensor]:
        def choose(seen: Tensor) -> Tensor:
            route = torch.softmax(self.routers["router"](blocks["router"], seen) / self.tau, -1)
            return one_hot(route) if hard else route

        return self.branches.run(blocks["shared"], blocks["local"], choose, x)

    def routes(self, blocks: Blocks, x: Tensor) -> Tensor:
        return self.branches.mean_route(self.routed(blocks, x, hard=False)[1], x)

    def phases(self) -> list[Phase]:
        support, query = ("support", "query") if self.split_data else ("all", "all")
        if self.global_update_path == "global_only":
            updates: tuple[Update, ...] = (self.route_step(), self.step("shared", loss=self.shared_loss))
        else:
            updates = (self.step("router", "shared", optimizer=self.pacing),)
        return [self.tune_local(support), Phase(updates, self.epochs, query)]

    def route_step(self) -> Update:
        return self.step("router", optimizer=self.pacing)

    @property
    def pacing(self) -> Optimizer:
        """The local optimizer, in which the router has its own learning rate."""
        first = len(self.routers["router"].names)
        return self.optimizer if self.router_pace == 1 else Paced(self.optimizer, first, self.router_pace)
