"""One model for everybody: clients train it, the server averages it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedblocks.core.blocks import Block, Shared
from fedblocks.core.description import Paper
from fedblocks.core.method import Method
from fedblocks.core.parts import Blocks
from fedblocks.core.phases import Phase


@dataclass(frozen=True, eq=False)
class FedAvg(Method):
    """Federated averaging (McMahan et al., 2017)."""

    paper: ClassVar[Paper] = Paper(
        "Communication-Efficient Learning of Deep Networks from Decentralized Data",
        "McMahan et al.",
        2017,
        "AISTATS",
    )
    personal_by: ClassVar[str] = "none"

    def blocks(self) -> dict[str, Block]:
        return {"model": Shared(self.net.whole)}

    def predict(self, blocks: Blocks, x: Tensor) -> Tensor:
        return self.net(blocks["model"], x)

    def phases(self) -> list[Phase]:
        return [Phase((self.step("model"),), self.epochs)]
