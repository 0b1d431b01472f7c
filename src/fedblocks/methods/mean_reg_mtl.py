"""Personal models that are pulled to their mean."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from torch import Tensor

from fedblocks.core.blocks import Block, Private, Shared
from fedblocks.core.description import Paper
from fedblocks.core.method import Method
from fedblocks.core.optimizers import SGD, Optimizer
from fedblocks.core.options import AtLeast, Help
from fedblocks.core.parts import Blocks
from fedblocks.core.phases import Phase, Pull


@dataclass(frozen=True, eq=False)
class MeanRegMTL(Method):
    """Mean-regularised multi-task learning: clients never load the mean, it only pulls
    (Evgeniou and Pontil, 2004).
    """

    paper: ClassVar[Paper] = Paper(
        "Regularized Multi-Task Learning", "Evgeniou and Pontil", 2004, "KDD"
    )

    optimizer: Annotated[Optimizer, Help("the local optimizer")] = field(
        default_factory=lambda: SGD(weight_decay=5e-4)
    )
    strength: Annotated[
        float,
        AtLeast(0),
        Help("mu: of the pull to the mean of all clients' models", usual="0.1 to 10"),
    ] = 1.0

    def blocks(self) -> dict[str, Block]:
        return {"model": Private(self.net.whole), "mean": Shared(self.net.whole, of="model")}

    def predict(self, blocks: Blocks, x: Tensor) -> Tensor:
        return self.net(blocks["model"], x)

    def phases(self) -> list[Phase]:
        pull = Pull("model", to="mean", strength=self.strength)
        return [Phase((self.step("model", pull=pull),), self.epochs)]

    def joining(self) -> list[Phase]:
        train = self.phases()[0]
        return [Phase(train.updates, train.epochs, begin=self.from_mean)]

    def from_mean(self, blocks: Blocks) -> Blocks:
        """A client that has no model yet takes the mean of the others."""
        return {**blocks, "model": blocks["mean"]}

    def degenerate(self) -> list[str]:
        if self.strength > 0:
            return []
        return ["strength = 0 makes mean-regularised multi-task learning Local"]
