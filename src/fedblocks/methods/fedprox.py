"""FedAvg whose clients are pulled to the model that they were sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedblocks.core.errors import UserError
from fedblocks.core.method import Paper
from fedblocks.core.phases import Phase, Pull
from fedblocks.methods.fedavg import FedAvg


@dataclass(frozen=True, eq=False)
class FedProx(FedAvg):
    """Federated averaging with a proximal term (Li et al., 2020)."""

    paper: ClassVar[Paper] = Paper("Federated Optimization in Heterogeneous Networks", "Li et al.", 2020, "MLSys")
    in_steps_only: ClassVar[tuple[str, ...]] = ("strength",)

    strength: float = 0.01  # mu: of the pull to the model that was sent
    tune_epochs: int = 0  # of local training before an evaluation; 1 where it is listed as a personal method

    def __post_init__(self) -> None:
        if self.strength < 0:
            raise UserError(f"strength = {self.strength} must not be negative", "0.001 to 1 are usual")
        if self.tune_epochs < 0:
            raise UserError(f"tune_epochs = {self.tune_epochs} must not be negative", "0 is the paper's")

    def phases(self) -> list[Phase]:
        return [self.near(self.epochs)]

    def adaptation(self) -> list[Phase]:
        return [self.near(self.tune_epochs)] if self.tune_epochs else []

    def near(self, epochs: int) -> Phase:
        """Local training that stays near the model that was sent."""
        return Phase((self.step("model", pull=Pull("model", to="model", strength=self.strength)),), epochs)

    def degenerate(self) -> list[str]:
        return ["strength = 0 makes FedProx FedAvg"] if self.strength == 0 else []
