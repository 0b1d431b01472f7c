"""A shared body, a private head."""

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
class FedPer(Method):
    """The body is averaged, the head stays with its client; both train together
    (Arivazhagan et al., 2019).
    """

    paper: ClassVar[Paper] = Paper(
        "Federated Learning with Personalization Layers",
        "Arivazhagan et al.",
        2019,
        "arXiv 1912.00818",
    )

    def blocks(self) -> dict[str, Block]:
        return {"body": Shared(self.net.body), "head": Private(self.net.head)}

    def predict(self, blocks: Blocks, x: Tensor) -> Tensor:
        return self.net(join(blocks["body"], blocks["head"]), x)

    def phases(self) -> list[Phase]:
        return [Phase((self.step("body", "head"),), self.epochs)]

    def joining(self) -> list[Phase]:
        return [Phase((self.step("head"),), self.epochs)]
