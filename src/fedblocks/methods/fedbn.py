"""FedAvg, but for the normalisation layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedblocks.core.blocks import Block, Private, Shared
from fedblocks.core.description import Paper
from fedblocks.core.method import Method, join
from fedblocks.core.parts import Blocks
from fedblocks.core.phases import Phase


@dataclass(frozen=True, eq=False)
class FedBN(Method):
    """Normalisation layers, parameters and statistics, stay with their client (Li et al., 2021)."""

    paper: ClassVar[Paper] = Paper(
        "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization",
        "Li et al.",
        2021,
        "ICLR",
    )

    def blocks(self) -> dict[str, Block]:
        norms = set(self.net.norms.names)
        rest = self.net.piece(name for name in self.net.names if name not in norms)
        own: dict[str, Block] = {"norms": Private(self.net.norms)} if norms else {}
        return {"rest": Shared(rest), **own}

    def predict(self, blocks: Blocks, x: Tensor) -> Tensor:
        return self.net(join(blocks["rest"], blocks.get("norms", {})), x)

    def phases(self) -> list[Phase]:
        return [Phase((self.step(*self.blocks()),), self.epochs)]

    def joining(self) -> list[Phase]:
        return [Phase((self.step("norms"),), self.epochs)] if self.net.norms.names else []

    def degenerate(self) -> list[str]:
        if self.net.norms.names:
            return []
        text = "the net has no normalisation layer, which makes FedBN FedAvg"
        return [f'{text}; one that has is net = {{name = "cnn", batch_norm = true}}']
