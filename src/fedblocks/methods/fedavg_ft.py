"""FedAvg, fine-tuned by each client before it is used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedblocks.core.errors import UserError
from fedblocks.core.method import Paper
from fedblocks.core.phases import Phase
from fedblocks.core.schedules import Schedule
from fedblocks.methods.fedavg import FedAvg


@dataclass(frozen=True, eq=False)
class FedAvgFT(FedAvg):
    """FedAvg+: one model for everybody, fine-tuned on each client's training data (Jiang et al., 2019)."""

    paper: ClassVar[Paper] = Paper(
        "Improving Federated Learning Personalization via Model Agnostic Meta Learning",
        "Jiang et al.",
        2019,
        "arXiv 1909.12488",
    )
    in_steps_only: ClassVar[tuple[str, ...]] = ("tune_lr",)
    personal_by: ClassVar[str] = "client"

    tune_epochs: int = 1  # of fine-tuning before an evaluation
    tune_lr: float | Schedule | None = None  # default: the local learning rate

    def __post_init__(self) -> None:
        if self.tune_epochs < 0:
            raise UserError(f"tune_epochs = {self.tune_epochs} must not be negative", "1 to 5 are usual")

    def adaptation(self) -> list[Phase]:
        return [Phase((self.step("model", lr=self.tune_lr),), self.tune_epochs)]

    def degenerate(self) -> list[str]:
        return ["tune_epochs = 0 makes FedAvg+ FedAvg"] if self.tune_epochs == 0 else []
