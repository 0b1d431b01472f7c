"""A shared body and a private head, trained one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from fedblocks.core.description import Paper
from fedblocks.core.options import AtLeast, Help
from fedblocks.core.phases import Phase
from fedblocks.methods.fedper import FedPer


@dataclass(frozen=True, eq=False)
class FedRep(FedPer):
    """Many epochs of the head on the body as it was sent, then few of the body (Collins
    et al., 2021).
    """

    paper: ClassVar[Paper] = Paper(
        "Exploiting Shared Representations for Personalized Federated Learning",
        "Collins et al.",
        2021,
        "ICML",
    )

    head_epochs: Annotated[
        int, AtLeast(0), Help("of the head in a round; `epochs` are the body's", usual="1 to 10")
    ] = 10
    tune_epochs: Annotated[
        int, AtLeast(0), Help("of the head before an evaluation", usual="0 to 10")
    ] = 0

    def phases(self) -> list[Phase]:
        return [*self.joining(), Phase((self.step("body"),), self.epochs)]

    def joining(self) -> list[Phase]:
        return [Phase((self.step("head"),), self.head_epochs)]

    def adaptation(self) -> list[Phase]:
        return [Phase((self.step("head"),), self.tune_epochs)] if self.tune_epochs else []

    def degenerate(self) -> list[str]:
        if self.head_epochs > 0:
            return []
        return ["head_epochs = 0 leaves all heads as they started, like FedBABU's"]
