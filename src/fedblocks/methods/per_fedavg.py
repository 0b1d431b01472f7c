"""A shared model that is good to start from: one step of a client's own makes it personal."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor
from torch.func import grad

from fedblocks.core import mode
from fedblocks.core.description import Paper
from fedblocks.core.optimizers import SGD
from fedblocks.core.options import AtLeast, Help, Positive
from fedblocks.core.parts import Blocks, Params, is_statistic
from fedblocks.core.phases import Batch, Phase
from fedblocks.core.random import fold
from fedblocks.methods.fedavg import FedAvg


@dataclass(frozen=True, eq=False)
class PerFedAvg(FedAvg):
    """FedAvg on the loss after an inner step, as in model-agnostic meta-learning
    (Fallah et al., 2020).
    """

    paper: ClassVar[Paper] = Paper(
        "Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic "
        "Meta-Learning Approach",
        "Fallah et al.",
        2020,
        "NeurIPS",
    )
    personal_by: ClassVar[str] = "client"

    inner_lr: Annotated[
        float,
        AtLeast(0),
        Help(
            "alpha: of the inner step, and of the steps that make the model personal",
            usual="0.01",
        ),
    ] = 0.01
    variant: Annotated[
        Literal["fo", "hf"],
        Help('"fo": without second derivatives; "hf": with, from differences of gradients'),
    ] = "fo"
    delta: Annotated[
        float,
        Positive(),
        Help("how far apart those gradients are taken, in lengths of the gradient", usual="0.001"),
    ] = 1e-3
    adapt_steps: Annotated[
        int, AtLeast(0), Help("on the client's training data before an evaluation", usual="1")
    ] = 1

    def phases(self) -> list[Phase]:
        return [Phase((self.step("model", loss=self.meta_loss),), self.epochs)]

    def adaptation(self) -> list[Phase]:
        step = self.step("model", lr=self.inner_lr, optimizer=SGD())
        return [Phase((step,), steps=self.adapt_steps)]

    def meta_loss(self, blocks: Blocks, batch: Batch) -> Tensor:
        """Its gradient is that of the loss at w - alpha grad f(w), with or without the
        curvature at w.
        """
        w = blocks["model"]
        parts = divide(batch, 2 if self.variant == "fo" else 3)
        near = move(w, self.slope(w, parts[0]), -self.inner_lr)
        value = self.loss_on(near, parts[1])
        if self.variant == "fo":
            return value
        g = self.slope(near, parts[1])
        up = self.slope(move(w, g, self.delta), parts[2])
        down = self.slope(move(w, g, -self.delta), parts[2])
        bend = [((up[k] - down[k]) / (2 * self.delta) * w[k]).sum() for k in g]
        return value - self.inner_lr * torch.stack(bend).sum()

    def slope(self, model: Params, batch: Batch) -> Params:
        """The gradient of the loss, as a constant."""
        fixed = {k: v.detach() for k, v in model.items()}
        weights = {k: v for k, v in fixed.items() if not is_statistic(k)}
        statistics = {k: v for k, v in fixed.items() if is_statistic(k)}

        def loss(weights: Params) -> Tensor:
            return self.loss_on({**weights, **{k: v.clone() for k, v in statistics.items()}}, batch)

        slopes: Params = grad(loss)(weights)
        return slopes

    def loss_on(self, model: Params, batch: Batch) -> Tensor:
        now = mode.current()
        with mode.mode(now.training, now.mapped, batch.mask, batch.key):
            return self.loss({"model": model}, batch)

    def degenerate(self) -> list[str]:
        sentences = []
        if self.inner_lr == 0:
            sentences.append("inner_lr = 0 makes Per-FedAvg FedAvg on a part of each batch")
        if self.adapt_steps == 0:
            sentences.append("adapt_steps = 0 leaves the shared model as it is")
        return sentences


def divide(batch: Batch, count: int) -> list[Batch]:
    """A batch in several, by turns; one that would be empty is the first again."""
    size = len(batch.mask)
    width = -(-size // count)
    turns = torch.arange(width, device=batch.mask.device) * count
    batches = []
    for number in range(count):
        inside = turns + number < size
        index = (turns + number).clamp(max=size - 1)
        mask = batch.mask[index] * inside
        some = mask.sum() > 0
        index = torch.where(some, index, turns)
        mask = torch.where(some, mask, batch.mask[turns])
        rows = {name: getattr(batch, name)[index] for name in ("x", "y", "index")}
        batches.append(replace(batch, **rows, mask=mask, key=fold(batch.key, number)))
    return batches


def move(model: Params, direction: Params, length: float) -> Params:
    """A model some way along a direction; what the direction does not name stays."""
    return {**model, **{k: model[k] + length * v for k, v in direction.items()}}
