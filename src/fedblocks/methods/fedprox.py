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

    strength: float = 0.01  # mu: of the pull to the model that was sent

    def __post_init__(self) -> None:
        if self.strength < 0:
            raise UserError(f"strength = {self.strength} must not be negative", "0.001 to 1 are usual")

    def phases(self) -> list[Phase]:
        pull = Pull("model", to="model", strength=self.strength)
        return [Phase((self.step("model", pull=pull),), self.epochs)]

    def degenerate(self) -> list[str]:
        return ["strength = 0 makes FedProx FedAvg"] if self.strength == 0 else []
