"""A shared body under a head that never trains, until a client fine-tunes both for itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from fedblocks.core.blocks import Block, Fresh, Shared
from fedblocks.core.description import Paper
from fedblocks.core.options import AtLeast, Help, Positive
from fedblocks.core.phases import Phase
from fedblocks.core.schedules import Schedule
from fedblocks.methods.fedper import FedPer

TUNED = {"whole": ("body", "head"), "head": ("head",), "body": ("body",)}


@dataclass(frozen=True, eq=False)
class FedBABU(FedPer):
    """Body aggregation and body update: only the body learns in the federation (Oh et
    al., 2022).
    """

    paper: ClassVar[Paper] = Paper(
        "FedBABU: Toward Enhanced Representation for Federated Image Classification",
        "Oh et al.",
        2022,
        "ICLR",
    )

    tune: Annotated[
        Literal["whole", "head", "body"],
        Help('what is fine-tuned before an evaluation: "whole", "head" or "body"'),
    ] = "whole"
    tune_epochs: Annotated[int, AtLeast(0), Help("of fine-tuning", usual="1 to 5")] = 5
    tune_lr: Annotated[
        float | Schedule | None,
        Positive(),
        Help("of fine-tuning; default: the local learning rate"),
    ] = None

    def blocks(self) -> dict[str, Block]:
        # every round starts from the same head
        return {"body": Shared(self.net.body), "head": Fresh(self.net.head)}

    def phases(self) -> list[Phase]:
        return [Phase((self.step("body"),), self.epochs)]

    def adaptation(self) -> list[Phase]:
        return [Phase((self.step(*TUNED[self.tune], lr=self.tune_lr),), self.tune_epochs)]

    def joining(self) -> list[Phase]:
        return self.adaptation()

    def degenerate(self) -> list[str]:
        if self.tune_epochs > 0:
            return []
        return ["tune_epochs = 0 leaves FedBABU without a personal model"]
