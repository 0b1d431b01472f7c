"""FedAvg, fine-tuned by each client before it is used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from fedblocks.core.description import Paper
from fedblocks.core.options import AtLeast, Help, Positive
from fedblocks.core.phases import Phase
from fedblocks.core.schedules import Schedule
from fedblocks.methods.fedavg import FedAvg


@dataclass(frozen=True, eq=False)
class FedAvgFT(FedAvg):
    """FedAvg+: one model for everybody, fine-tuned on each client's training data
    (Jiang et al., 2019).
    """

    paper: ClassVar[Paper] = Paper(
        "Improving Federated Learning Personalization via Model Agnostic Meta Learning",
        "Jiang et al.",
        2019,
        "arXiv 1909.12488",
    )
    personal_by: ClassVar[str] = "client"

    tune_epochs: Annotated[
        int, AtLeast(0), Help("of fine-tuning before an evaluation", usual="1 to 5")
    ] = 1
    tune_lr: Annotated[
        float | Schedule | None,
        Positive(),
        Help("of fine-tuning; default: the local learning rate"),
    ] = None

    def adaptation(self) -> list[Phase]:
        return [Phase((self.step("model", lr=self.tune_lr),), self.tune_epochs)]

    def degenerate(self) -> list[str]:
        return ["tune_epochs = 0 makes FedAvg+ FedAvg"] if self.tune_epochs == 0 else []
