"""A part of the net is kept by nobody: every client reconstructs it, every time, from
some of its examples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from fedblocks.core.blocks import Block, Fresh, Shared
from fedblocks.core.client import Client
from fedblocks.core.description import Paper
from fedblocks.core.errors import nearest
from fedblocks.core.method import Method, join
from fedblocks.core.options import AtLeast, Conflict, Help, Positive
from fedblocks.core.parts import Blocks
from fedblocks.core.phases import Phase
from fedblocks.core.pieces import Piece
from fedblocks.core.rules import Average, MovingAverage, Rule, ServerAdagrad, ServerAdam, ServerYogi
from fedblocks.core.schedules import Schedule

RULES: dict[str, type] = {
    "average": MovingAverage,
    "yogi": ServerYogi,
    "adam": ServerAdam,
    "adagrad": ServerAdagrad,
}


@dataclass(frozen=True, eq=False)
class FedRecon(Method):
    """The local part learns on support examples, the shared part on the others (Singhal
    et al., 2021).
    """

    paper: ClassVar[Paper] = Paper(
        "Federated Reconstruction: Partially Local Federated Learning",
        "Singhal et al.",
        2021,
        "NeurIPS",
    )
    weight_label: ClassVar[str | Mapping[str, str]] = {"shared": "labels of the query half"}

    local: Annotated[
        str,
        Help('what is reconstructed: "head", a module or a named cut of the net; "" for nothing'),
    ] = "head"
    local_init: Annotated[
        Literal["random", "zero"],
        Help('where reconstruction starts: the "random" start of the net, or "zero"'),
    ] = "random"
    recon_epochs: Annotated[int, AtLeast(0), Help("of reconstruction", usual="1 to 5")] = 5
    recon_steps: Annotated[
        int | None, AtLeast(0), Help("this many batches instead of whole epochs")
    ] = None
    recon_lr: Annotated[
        float | Schedule | None,
        Positive(),
        Help("of reconstruction; default: the local learning rate"),
    ] = None
    split_data: Annotated[
        bool, Help("reconstruct on one half of the examples, train the shared part on the other")
    ] = True
    server_rule: Annotated[
        Literal["average", "yogi", "adam", "adagrad"],
        Help('what the server does with the change: "average", "yogi", "adam" or "adagrad"'),
    ] = "average"
    server_lr: Annotated[
        float,
        Positive(),
        Help("the server's learning rate", usual="1 for the average, 0.01 to 0.1 else"),
    ] = 1.0

    def conflicts(self) -> list[Conflict]:
        if self.local and not self.personal.names:
            paths = [path for path, _ in self.net.template.named_modules() if path]
            known = nearest(self.local, [*self.net.pieces, *paths])
            return [Conflict("local", "the net has no such module", known, with_net=True)]
        if not self.common.names:
            fix = "name a smaller part of the net"
            return [Conflict("local", "leaves nothing to share", fix, with_net=True)]
        return []

    @cached_property
    def personal(self) -> Piece:
        """The part that is reconstructed."""
        if self.local in self.net.pieces:
            return self.net.pieces[self.local]
        if self.local == "head":
            return self.net.head
        return self.net.piece(
            n for n in self.net.names if n == self.local or n.startswith(f"{self.local}.")
        )

    @cached_property
    def common(self) -> Piece:
        """The part that is federated."""
        return self.net.piece(set(self.net.names) - set(self.personal.names))

    def blocks(self) -> dict[str, Block]:
        plain = self.server_rule == "average" and self.server_lr == 1
        rule: Rule = Average() if plain else RULES[self.server_rule](self.server_lr)
        local: dict[str, Block] = {"local": Fresh(self.personal)} if self.personal.names else {}
        return {"shared": Shared(self.common, rule=rule), **local}

    def prepare(self, blocks: Blocks, client: Client) -> Blocks:
        if self.local_init == "random" or "local" not in blocks:
            return blocks
        zeros = {name: torch.zeros_like(value) for name, value in blocks["local"].items()}
        return {**blocks, "local": zeros}

    def predict(self, blocks: Blocks, x: Tensor) -> Tensor:
        return self.net(join(blocks["shared"], blocks.get("local", {})), x)

    def phases(self) -> list[Phase]:
        support, query = ("support", "query") if self.split_data else ("all", "all")
        return [*self.reconstruction(support), Phase((self.step("shared"),), self.epochs, query)]

    def reconstruction(self, on: str) -> list[Phase]:
        if not self.personal.names:
            return []
        step = self.step("local", lr=self.recon_lr)
        return [Phase((step,), self.recon_epochs, on, self.recon_steps)]

    def adaptation(self) -> list[Phase]:
        # all that a client trains on is support for what it is tested on
        return self.reconstruction("all")

    def writes(self, blocks: Blocks, client: Client) -> dict[str, Tensor]:
        """The number of labels that the shared part was trained on."""
        place = torch.arange(len(client.rows), device=client.rows.device)
        query = place < client.size  # [examples]
        if self.split_data:
            half = (client.size + 1).div(2).floor()
            query = (place >= half) & query | (client.size == 1)
        labels = client.task.scored(client.y).to(client.size.dtype).view(len(place), -1).sum(1)
        return {"shared": (labels * query * client.mask).sum()[None]}

    def degenerate(self) -> list[str]:
        if self.personal.names:
            return []
        return ['local = "" leaves nothing to reconstruct: FedRecon is FedOpt']
