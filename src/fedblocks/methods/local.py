"""Every client trains alone; the reference that federated learning must beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedblocks.core.blocks import Block, Private
from fedblocks.core.description import Paper
from fedblocks.core.method import Method
from fedblocks.core.parts import Blocks
from fedblocks.core.phases import Phase


@dataclass(frozen=True, eq=False)
class Local(Method):
    """No federation: each client trains the common initial model on its own data."""

    paper: ClassVar[Paper] = Paper("none: the reference without federation", "", 0)

    def blocks(self) -> dict[str, Block]:
        return {"model": Private(self.net.whole)}

    def predict(self, blocks: Blocks, x: Tensor) -> Tensor:
        return self.net(blocks["model"], x)

    def phases(self) -> list[Phase]:
        return [Phase((self.step("model"),), self.epochs)]
