"""What Ditto, APFL and pFedMe have in common: a shared model and a personal one."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedblocks.core.blocks import Block, Private, Shared
from fedblocks.core.method import Method, View
from fedblocks.core.parts import Blocks
from fedblocks.core.phases import Batch


@dataclass(frozen=True, eq=False)
class Pair(Method):
    """A shared model, and a personal model that stays with its client and predicts."""

    def blocks(self) -> dict[str, Block]:
        return {"shared": Shared(self.net.whole), "personal": Private(self.net.whole)}

    def predict(self, blocks: Blocks, x: Tensor) -> Tensor:
        return self.net(blocks["personal"], x)

    def predict_shared(self, blocks: Blocks, x: Tensor) -> Tensor:
        return self.net(blocks["shared"], x)

    def views(self) -> dict[str, View]:
        return {"personal": self.predict, "shared": self.predict_shared}

    def shared_loss(self, blocks: Blocks, batch: Batch) -> Tensor:
        return batch.loss(self.predict_shared(blocks, batch.x))
