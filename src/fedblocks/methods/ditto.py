"""A personal model that is pulled to the shared one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from fedblocks.core.description import Paper
from fedblocks.core.options import AtLeast, Help, Positive
from fedblocks.core.phases import Phase, Pull
from fedblocks.core.schedules import Schedule
from fedblocks.methods._common.two_models import Pair


@dataclass(frozen=True, eq=False)
class Ditto(Pair):
    """FedAvg, and beside it a personal model near the one that was sent (Li et al., 2021)."""

    paper: ClassVar[Paper] = Paper(
        "Ditto: Fair and Robust Federated Learning Through Personalization",
        "Li et al.",
        2021,
        "ICML",
    )

    strength: Annotated[
        float, AtLeast(0), Help("lambda: of the pull to the model that was sent", usual="0.1 to 2")
    ] = 1.0
    personal_epochs: Annotated[
        int | None, AtLeast(0), Help("of the personal model; default: the local epochs")
    ] = None
    personal_lr: Annotated[
        float | Schedule | None,
        Positive(),
        Help("of the personal model; default: the local learning rate"),
    ] = None

    def phases(self) -> list[Phase]:
        return [*self.joining(), Phase((self.step("shared", loss=self.shared_loss),), self.epochs)]

    def joining(self) -> list[Phase]:
        # as it was sent: training it comes later
        pull = Pull("personal", to="shared", strength=self.strength)
        epochs = self.epochs if self.personal_epochs is None else self.personal_epochs
        return [Phase((self.step("personal", lr=self.personal_lr, pull=pull),), epochs)]

    def degenerate(self) -> list[str]:
        return ["strength = 0 makes Ditto's personal model Local"] if self.strength == 0 else []
