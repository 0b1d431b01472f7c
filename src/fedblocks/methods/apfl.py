"""Each client uses its own mixture of a shared and a personal model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from fedblocks.core.blocks import Block, Private
from fedblocks.core.description import Paper
from fedblocks.core.optimizers import SGD
from fedblocks.core.options import AtLeast, AtMost, Help, Positive
from fedblocks.core.parts import Blocks, Params, Value, is_statistic
from fedblocks.core.phases import Phase, Update
from fedblocks.core.schedules import Schedule
from fedblocks.methods._common.two_models import Pair


@dataclass(frozen=True, eq=False)
class APFL(Pair):
    """The personal model learns inside the mixture alpha v + (1 - alpha) w (Deng et al., 2020)."""

    paper: ClassVar[Paper] = Paper(
        "Adaptive Personalized Federated Learning", "Deng et al.", 2020, "arXiv 2003.13461"
    )

    alpha: Annotated[
        float,
        AtLeast(0),
        AtMost(1),
        Help("share of the personal model, at the start", usual="0.5; 0 is FedAvg, 1 is Local"),
    ] = 0.5
    adapt_alpha: Annotated[
        Literal["never", "step", "round"], Help('"never", in every "step", or once a "round"')
    ] = "never"
    alpha_lr: Annotated[
        float | Schedule | None, Positive(), Help("of alpha; default: the local learning rate")
    ] = None
    alpha_decay: Annotated[
        float, AtLeast(0), Help("weight decay of alpha; the authors' code has 0.02")
    ] = 0.0
    mixing: Annotated[
        Literal["parameters", "outputs"],
        Help('what is mixed: "parameters", or "outputs" as in the code of the authors'),
    ] = "parameters"

    def blocks(self) -> dict[str, Block]:
        share = torch.full((1,), self.alpha, dtype=self.net.dtype)
        return {**super().blocks(), "alpha": Private(Value(share))}

    def predict(self, blocks: Blocks, x: Tensor) -> Tensor:
        if self.mixing == "parameters":
            return self.net(self.mixture(blocks), x)
        share = blocks["alpha"]["value"][0]
        return share * self.net(blocks["personal"], x) + (1 - share) * self.net(blocks["shared"], x)

    def mixture(self, blocks: Blocks) -> Params:
        """alpha v + (1 - alpha) w; running statistics are those that the mixture itself
        left in v.
        """
        share = blocks["alpha"]["value"][0]
        shared = blocks["shared"]
        return {
            k: v if is_statistic(k) else share * v + (1 - share) * shared[k]
            for k, v in blocks["personal"].items()
        }

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
        sgd = SGD(weight_decay=self.alpha_decay)
        return self.step("alpha", lr=self.alpha_lr, optimizer=sgd, project=clip)

    def degenerate(self) -> list[str]:
        if self.adapt_alpha != "never" or self.alpha not in (0, 1):
            return []
        other = "FedAvg" if self.alpha == 0 else "Local"
        return [f"alpha = {self.alpha:g} that never adapts makes APFL {other}"]


def clip(moved: Blocks) -> Blocks:
    """Back into [0, 1]."""
    return {"alpha": {"value": moved["alpha"]["value"].clamp(0, 1)}}
