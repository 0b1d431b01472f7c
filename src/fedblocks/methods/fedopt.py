"""FedAvg whose server treats the average change as a gradient for an adaptive optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from fedblocks.core.blocks import Block, Shared
from fedblocks.core.description import Paper
from fedblocks.core.optimizers import Kept
from fedblocks.core.options import AtLeast, Help, Positive
from fedblocks.core.rules import Rule, ServerAdagrad, ServerAdam, ServerYogi
from fedblocks.methods.fedavg import FedAvg


@dataclass(frozen=True, eq=False)
class FedOpt(FedAvg):
    """What the three adaptive methods have in common (Reddi et al., 2021)."""

    paper: ClassVar[Paper] = Paper("Adaptive Federated Optimization", "Reddi et al.", 2021, "ICLR")

    server_lr: Annotated[
        float, AtLeast(0), Help("eta: the server's learning rate", usual="0.001 to 1")
    ] = 0.01
    beta1: Annotated[Kept, Help("how much of the server's momentum is kept", usual="0.9")] = 0.9
    tau: Annotated[
        float,
        Positive(),
        Help(
            "degree of adaptivity: small = adaptive; the second moment starts at its square",
            usual="1e-5 to 0.1",
        ),
    ] = 1e-3

    def blocks(self) -> dict[str, Block]:
        return {"model": Shared(self.net.whole, rule=self.rule())}

    def rule(self) -> Rule:
        """The server's optimizer."""
        raise NotImplementedError("FedYogi, FedAdam and FedAdagrad differ in this")

    def degenerate(self) -> list[str]:
        return ["server_lr = 0 leaves the model as it started"] if self.server_lr == 0 else []


@dataclass(frozen=True, eq=False)
class FedYogi(FedOpt):
    """The second moment grows and shrinks by small steps (Reddi et al., 2021)."""

    beta2: Annotated[Kept, Help("how much of the second moment is kept", usual="0.99")] = 0.99

    def rule(self) -> Rule:
        return ServerYogi(self.server_lr, self.beta1, self.beta2, self.tau)


@dataclass(frozen=True, eq=False)
class FedAdam(FedOpt):
    """The second moment is a moving average (Reddi et al., 2021)."""

    beta2: Annotated[Kept, Help("how much of the second moment is kept", usual="0.99")] = 0.99

    def rule(self) -> Rule:
        return ServerAdam(self.server_lr, self.beta1, self.beta2, self.tau)


@dataclass(frozen=True, eq=False)
class FedAdagrad(FedOpt):
    """The second moment is the sum of all rounds (Reddi et al., 2021)."""

    beta1: Annotated[Kept, Help("how much of the server's momentum is kept", usual="0")] = 0.0

    def rule(self) -> Rule:
        return ServerAdagrad(self.server_lr, self.beta1, tau=self.tau)
