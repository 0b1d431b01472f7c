"""Each client uses its own mixture of a shared and a personal model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedblocks.core.blocks import Block, Private
from fedblocks.core.errors import UserError
from fedblocks.core.method import Paper
from fedblocks.core.optimizers import SGD
from fedblocks.core.parts import Blocks, Params, Value, is_statistic
from fedblocks.core.phases import Phase, Update
from fedblocks.core.schedules import Schedule
from fedblocks.methods.pair import Pair

MIXING = ("parameters", "outputs")
ADAPT = ("never", "step", "round")


@dataclass(frozen=True, eq=False)
class APFL(Pair):
    """The personal model learns inside the mixture alpha v + (1 - alpha) w (Deng et al., 2020)."""

    paper: ClassVar[Paper] = Paper("Adaptive Personalized Federated Learning", "Deng et al.", 2020, "arXiv 2003.13461")

    alpha: float = 0.5  # share of the personal model, at the start
    adapt_alpha: str = "never"  # "never", in every "step", or once a "round"
    alpha_lr: float | Schedule | None = None  # default: the local learning rate
    alpha_decay: float = 0.0  # weight decay of alpha; the authors' code has 0.02
    mixing: str = "parameters"  # or "outputs", as in the authors' code

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise UserError(f"alpha = {self.alpha} must be between 0 and 1", "0.5 is usual; 0 is FedAvg, 1 is Local")
        if self.adapt_alpha not in ADAPT:
            raise UserError(f'adapt_alpha = "{self.adapt_alpha}" is not known', f"use one of {', '.join(ADAPT)}")
        if self.mixing not in MIXING:
            raise UserError(f'mixing = "{self.mixing}" is not known', f"use one of {', '.join(MIXING)}")

    def blocks(self) -> dict[str, Block]:
        share = torch.full((1,), self.alpha, dtype=self.net.dtype)
        return {**super().blocks(), "alpha": Private(Value(share))}

    def predict(self, blocks: Blocks, x: Tensor) -> Tensor:
        if self.mixing == "parameters":
            return self.net(self.mixture(blocks), x)
        share = blocks["alpha"]["value"][0]
        return share * self.net(blocks["personal"], x) + (1 - share) * self.net(blocks["shared"], x)

    def mixture(self, blocks: Blocks) -> Params:
        """alpha v + (1 - alpha) w; running statistics are those that the mixture itself left in v."""
        share, shared = blocks["alpha"]["value"][0], blocks["shared"]
        return {k: v if is_statistic(k) else share * v + (1 - share) * shared[k] for k, v in blocks["personal"].items()}

    def phases(self) -> list[Phase]:
        shared = self.step("shared", loss=self.shared_loss)
        return self.local(shared, self.step("personal"))

    def joining(self) -> list[Phase]:
        return self.local(self.step("personal"))  # the shared model is only read

    def local(self, *updates: Update) -> list[Phase]:
        """Some updates in turn on every batch, and alpha's where it belongs."""
        match self.adapt_alpha:
            case "step":
                return [Phase((*updates, self.adapt), self.epochs)]
            case "round":
                return [Phase((self.adapt,), steps=1), Phase(updates, self.epochs)]
            case _:
                return [Phase(updates, self.epochs)]

    @property
    def adapt(self) -> Update:
        """alpha <- alpha - lr <v - w, gradient of the mixture>, kept in [0, 1]."""
        return self.step("alpha", lr=self.alpha_lr, optimizer=SGD(weight_decay=self.alpha_decay), project=clipped)

    def degenerate(self) -> list[str]:
        ends = {0: "alpha = 0 that never adapts makes APFL FedAvg", 1: "alpha = 1 that never adapts makes APFL Local"}
        return [ends[int(self.alpha)]] if self.alpha in ends and self.adapt_alpha == "never" else []


def clipped(moved: Blocks) -> Blocks:
    """Back into [0, 1]."""
    return {"alpha": {"value": moved["alpha"]["value"].clamp(0, 1)}}
