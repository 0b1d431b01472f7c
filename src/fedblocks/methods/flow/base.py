"""What both versions of Flow have in common: a shared net, a local copy that is made
anew, routers between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from fedblocks.core.blocks import Block, Fresh, Shared
from fedblocks.core.client import Client
from fedblocks.core.method import Method, View
from fedblocks.core.net import Net
from fedblocks.core.options import AtLeast, Help
from fedblocks.core.parts import Blocks
from fedblocks.core.phases import Batch, Phase, Update
from fedblocks.core.pieces import Piece
from fedblocks.methods.flow.instance_routes import PICTURED


@dataclass(frozen=True, eq=False)
class Routed(Method):
    """Every instance takes its own way between the shared net and a copy of it that its
    client has just tuned.
    """

    personal_by: ClassVar[str] = "instance"
    later_options: ClassVar[Mapping[str, Any]] = {"split_adaptation": False}

    local_epochs: Annotated[int, AtLeast(0), Help("of tuning the local copy", usual="1 to 5")] = 1
    router_epochs: Annotated[
        int, AtLeast(0), Help("of training the router before an evaluation", usual="1 to 5")
    ] = 1
    split_data: Annotated[
        bool, Help("tune the local copy on one half of the examples, train the rest on the other")
    ] = False
    split_adaptation: Annotated[
        bool,
        Help(
            "before an evaluation too: the router then sees examples that the copy was not tuned to"
        ),
    ] = False
    eval_routing: Annotated[
        Literal["soft", "hard"],
        Help('at test: "soft" mixtures, or the "hard" choice of the better branch'),
    ] = "soft"

    def __post_init__(self) -> None:
        _ = self.copied, self.routers  # a net that cannot be routed is refused here

    @property
    def copied(self) -> Piece:
        """What of the net the local copy has."""
        raise NotImplementedError

    @property
    def routers(self) -> dict[str, Net]:
        """The routers, by the names of their blocks."""
        raise NotImplementedError

    def routed(self, blocks: Blocks, x: Tensor, hard: bool) -> tuple[Tensor, Tensor]:
        """Logits, and how much of each branch is in them: [batch, ..., 2], the shared one first."""
        raise NotImplementedError

    def routes(self, blocks: Blocks, x: Tensor) -> Tensor:
        """Each instance's mean route as it is before any rounding: [batch, 2], the
        shared branch first.
        """
        raise NotImplementedError

    def blocks(self) -> dict[str, Block]:
        routers: dict[str, Block] = {name: Shared(net.whole) for name, net in self.routers.items()}
        return {"shared": Shared(self.net.whole), **routers, "local": Fresh()}

    # w_local <- copy of w_global; nothing is kept of it
    def prepare(self, blocks: Blocks, client: Client) -> Blocks:
        return {**blocks, "local": {name: blocks["shared"][name] for name in self.copied.names}}

    def predict(self, blocks: Blocks, x: Tensor) -> Tensor:
        return self.routed(blocks, x, hard=self.eval_routing == "hard")[0]

    def predict_shared(self, blocks: Blocks, x: Tensor) -> Tensor:
        return self.net(blocks["shared"], x)

    def views(self) -> dict[str, View]:
        return {"personal": self.predict, "shared": self.predict_shared}

    def loss(self, blocks: Blocks, batch: Batch) -> Tensor:
        return batch.loss(self.routed(blocks, batch.x, hard=False)[0])

    def local_loss(self, blocks: Blocks, batch: Batch) -> Tensor:
        return batch.loss(self.net({**blocks["shared"], **blocks["local"]}, batch.x))

    def shared_loss(self, blocks: Blocks, batch: Batch) -> Tensor:
        return batch.loss(self.predict_shared(blocks, batch.x))

    # alone under the shared head or decoder, which is fixed
    def tune_local(self, on: str) -> Phase:
        return Phase((self.step("local", loss=self.local_loss),), self.local_epochs, on)

    def route_step(self) -> Update:
        return self.step(*self.routers)

    # at any client, also a new one: build w_local again, then train the router
    def adaptation(self) -> list[Phase]:
        support, query = ("support", "query") if self.split_adaptation else ("all", "all")
        return [self.tune_local(support), Phase((self.route_step(),), self.router_epochs, query)]

    def portrait(self, blocks: Blocks, client: Client) -> dict[str, Tensor]:
        """Mean shares of both branches, and by how much they vary between instances: [3]."""
        seen = client.first(PICTURED)
        routes = self.routes(blocks, seen.x)  # [examples, 2]
        mean = seen.mean(routes)
        spread = seen.mean((routes - mean).square()).sqrt()[1:]
        return {"route": torch.cat([mean, spread])}

    def degenerate(self) -> list[str]:
        if self.local_epochs > 0:
            return []
        return ["local_epochs = 0 leaves nothing to route: both branches are equal"]
