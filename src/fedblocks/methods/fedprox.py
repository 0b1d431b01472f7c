"""FedAvg whose clients are pulled to the model that they were sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from fedblocks.core.description import Paper
from fedblocks.core.options import AtLeast, Help
from fedblocks.core.phases import Phase, Pull
from fedblocks.methods.fedavg import FedAvg


@dataclass(frozen=True, eq=False)
class FedProx(FedAvg):
    """Federated averaging with a proximal term (Li et al., 2020)."""

    paper: ClassVar[Paper] = Paper(
        "Federated Optimization in Heterogeneous Networks", "Li et al.", 2020, "MLSys"
    )

    strength: Annotated[
        float, AtLeast(0), Help("mu: of the pull to the model that was sent", usual="0.001 to 1")
    ] = 0.01
    tune_epochs: Annotated[
        int,
        AtLeast(0),
        Help(
            "of local training before an evaluation; 1 where it is listed as a personal method",
            usual="0, the paper's",
        ),
    ] = 0

    def phases(self) -> list[Phase]:
        return [self.near(self.epochs)]

    def adaptation(self) -> list[Phase]:
        return [self.near(self.tune_epochs)] if self.tune_epochs else []

    def near(self, epochs: int) -> Phase:
        """Local training that stays near the model that was sent."""
        pull = Pull("model", to="model", strength=self.strength)
        return Phase((self.step("model", pull=pull),), epochs)

    def degenerate(self) -> list[str]:
        return ["strength = 0 makes FedProx FedAvg"] if self.strength == 0 else []
