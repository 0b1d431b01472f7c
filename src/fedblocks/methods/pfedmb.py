"""Every layer is a client's own mixture of shared branches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedblocks.core.arithmetic import mix
from fedblocks.core.blocks import Block, Pool, Private, Shared
from fedblocks.core.client import Client
from fedblocks.core.errors import UserError
from fedblocks.core.method import Method, Paper, join
from fedblocks.core.optimizers import SGD
from fedblocks.core.parts import Blocks, Value
from fedblocks.core.phases import Phase
from fedblocks.core.schedules import Schedule


@dataclass(frozen=True, eq=False)
class PFedMB(Method):
    """Layers of shared branches, averaged by how much clients rely on them (Mori et al., 2022)."""

    paper: ClassVar[Paper] = Paper(
        "Personalized Federated Learning with Multi-branch Architecture", "Mori et al.", 2022, "arXiv 2211.07931"
    )
    weighs: ClassVar[str] = "n x alpha"

    branches: int = 3  # B, of every linear layer
    alpha_lr: float | Schedule = 0.3  # of the branch weights (their logits)
    alpha_epochs: int | None = None  # default: the local epochs

    def __post_init__(self) -> None:
        if self.branches < 1:
            raise UserError(f"branches = {self.branches} must be at least 1", "2 to 10 are usual")

    def blocks(self) -> dict[str, Block]:
        pools = zip(self.layers, self.net.layers.values(), strict=True)
        layers: dict[str, Block] = {name: Pool(piece, size=self.branches) for name, piece in pools}
        rest: dict[str, Block] = {"rest": Shared(self.net.rest)} if self.net.rest.names else {}
        logits = torch.zeros(len(layers), self.branches, dtype=self.net.dtype)  # [layers, branches]
        return {**layers, **rest, "alpha": Private(Value(logits))}

    def alpha(self, blocks: Blocks) -> dict[str, Tensor]:
        """The weight of every branch of every layer: name -> [branches], adding up to 1."""
        return dict(zip(self.layers, torch.softmax(blocks["alpha"]["value"], -1), strict=True))

    def predict(self, blocks: Blocks, x: Tensor) -> Tensor:
        mixed = [mix(blocks[name], weights) for name, weights in self.alpha(blocks).items()]
        return self.net(join(*mixed, blocks.get("rest", {})), x)

    def phases(self) -> list[Phase]:
        return [*self.joining(), Phase((self.step(*self.weights),), self.epochs)]

    def joining(self) -> list[Phase]:
        step = self.step("alpha", lr=self.alpha_lr, optimizer=SGD())
        return [Phase((step,), self.epochs if self.alpha_epochs is None else self.alpha_epochs)]

    @property
    def layers(self) -> tuple[str, ...]:
        """The names of the blocks that have branches."""
        return tuple(f"layers.{path}" for path in self.net.layers)

    @property
    def weights(self) -> tuple[str, ...]:
        """The blocks that the second phase trains."""
        return (*self.layers, "rest") if self.net.rest.names else self.layers

    def writes(self, blocks: Blocks, client: Client) -> dict[str, Tensor]:
        return {name: client.size * weights for name, weights in self.alpha(blocks).items()}

    def degenerate(self) -> list[str]:
        return ["branches = 1 makes pFedMB FedAvg"] if self.branches == 1 else []
