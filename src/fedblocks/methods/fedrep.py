"""A shared body and a private head, trained one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedblocks.core.errors import UserError
from fedblocks.core.method import Paper
from fedblocks.core.phases import Phase
from fedblocks.methods.fedper import FedPer


@dataclass(frozen=True, eq=False)
class FedRep(FedPer):
    """Many epochs of the head on the body as it was sent, then few of the body (Collins et al., 2021)."""

    paper: ClassVar[Paper] = Paper(
        "Exploiting Shared Representations for Personalized Federated Learning", "Collins et al.", 2021, "ICML"
    )

    head_epochs: int = 10  # of the head in a round; `epochs` are the body's
    tune_epochs: int = 0  # of the head before an evaluation

    def __post_init__(self) -> None:
        for name in ("head_epochs", "tune_epochs"):
            if getattr(self, name) < 0:
                raise UserError(f"{name} = {getattr(self, name)} must not be negative", "1 to 10 are usual")

    def phases(self) -> list[Phase]:
        return [*self.joining(), Phase((self.step("body"),), self.epochs)]

    def joining(self) -> list[Phase]:
        return [Phase((self.step("head"),), self.head_epochs)]

    def adaptation(self) -> list[Phase]:
        return [Phase((self.step("head"),), self.tune_epochs)] if self.tune_epochs else []

    def degenerate(self) -> list[str]:
        return ["head_epochs = 0 leaves all heads as they started, like FedBABU's"] if self.head_epochs == 0 else []
