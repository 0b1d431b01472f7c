"""FedAvg whose server treats the average change as a gradient for an adaptive optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedblocks.core.blocks import Block, Shared
from fedblocks.core.errors import UserError
from fedblocks.core.method import Paper
from fedblocks.core.rules import Adagrad, Adam, Rule, Yogi
from fedblocks.methods.fedavg import FedAvg


@dataclass(frozen=True, eq=False)
class FedOpt(FedAvg):
    """What the three adaptive methods have in common (Reddi et al., 2021)."""

    paper: ClassVar[Paper] = Paper("Adaptive Federated Optimization", "Reddi et al.", 2021, "ICLR")

    server_lr: float = 0.01  # eta
    beta1: float = 0.9  # how much of the server's momentum is kept
    tau: float = 1e-3  # degree of adaptivity: small = adaptive; the second moment starts at its square

    def __post_init__(self) -> None:
        if self.server_lr < 0:
            raise UserError(f"server_lr = {self.server_lr} must not be negative", "0.001 to 1 are usual")
        for name in ("beta1", "beta2"):
            kept = getattr(self, name, 0.0)  # Adagrad has no beta2
            if not 0 <= kept < 1:
                raise UserError(f"{name} = {kept} must be at least 0 and below 1", "0.9 and 0.99 are usual")
        if self.tau <= 0:
            raise UserError(f"tau = {self.tau} must be positive", "1e-5 to 1e-1 are usual")

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

    beta2: float = 0.99  # how much of the second moment is kept

    def rule(self) -> Rule:
        return Yogi(self.server_lr, self.beta1, self.beta2, self.tau)


@dataclass(frozen=True, eq=False)
class FedAdam(FedOpt):
    """The second moment is a moving average (Reddi et al., 2021)."""

    beta2: float = 0.99  # how much of the second moment is kept

    def rule(self) -> Rule:
        return Adam(self.server_lr, self.beta1, self.beta2, self.tau)


@dataclass(frozen=True, eq=False)
class FedAdagrad(FedOpt):
    """The second moment is the sum of all rounds (Reddi et al., 2021)."""

    beta1: float = 0.0

    def rule(self) -> Rule:
        return Adagrad(self.server_lr, self.beta1, tau=self.tau)
