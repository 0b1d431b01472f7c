"""Each client is its own mixture of shared components."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedblocks.core.arithmetic import each
from fedblocks.core.blocks import Block, Fresh, Pool, Private
from fedblocks.core.client import Client
from fedblocks.core.description import Paper
from fedblocks.core.method import Method
from fedblocks.core.options import AtLeast, Help
from fedblocks.core.parts import Blocks, Value
from fedblocks.core.phases import Batch, Phase
from fedblocks.core.task import current_task
from fedblocks.methods._common.draws import drawn, never_apart
from fedblocks.methods._common.mixtures import StepScale, scale_gradient, steps_of_one_net


@dataclass(frozen=True, eq=False)
class FedEM(Method):
    """Expectation-maximisation over a mixture of shared components (Marfoq et al., 2021)."""

    paper: ClassVar[Paper] = Paper(
        "Federated Multi-Task Learning under a Mixture of Distributions",
        "Marfoq et al.",
        2021,
        "NeurIPS",
    )

    later_options: ClassVar[Mapping[str, Any]] = {"lr_scale": "printed"}

    components: Annotated[int, AtLeast(1), Help("M: models that clients mix", usual="2 to 5")] = 3
    lr_scale: StepScale = "printed"

    def blocks(self) -> dict[str, Block]:
        even = torch.full((self.components,), 1 / self.components, dtype=self.net.dtype)
        return {
            "components": Pool(self.net.whole, size=self.components),
            "mixture": Private(Value(even)),  # pi
            "responsibility": Fresh(),  # q: [examples, components]
        }

    def prepare(self, blocks: Blocks, client: Client) -> Blocks:
        if not client.training:
            return blocks
        # the E-step
        q = F.softmax(self.log_mixture(blocks) - self.losses(blocks, client), -1)
        shares = (q * client.mask[:, None]).sum(0) / client.size.clamp(min=1)
        mixture = torch.where(client.size > 0, shares, blocks["mixture"]["value"])
        return {**blocks, "responsibility": {"value": q}, "mixture": {"value": mixture}}

    def losses(self, blocks: Blocks, seen: Client | Batch) -> Tensor:
        """The loss of every component on every example, minus the logarithm of its likelihood but
        for a constant: [examples, components].
        """
        outputs = each(self.net.whole, blocks["components"], seen.x)
        return torch.stack([seen.task.example_losses(rows, seen.y) for rows in outputs], -1)

    def log_mixture(self, blocks: Blocks) -> Tensor:
        return blocks["mixture"]["value"].clamp(min=1e-30).log()

    def phases(self) -> list[Phase]:  # the M-step
        return [Phase((self.step("components", loss=self.weighted_loss),), self.epochs)]

    def weighted_loss(self, blocks: Blocks, batch: Batch) -> Tensor:
        q = blocks["responsibility"]["value"][batch.index]  # [batch, components]
        loss = batch.mean((q * self.losses(blocks, batch)).sum(-1))
        if self.lr_scale == "printed":
            return loss
        return scale_gradient(loss, steps_of_one_net(blocks["mixture"]["value"]))

    def predict(self, blocks: Blocks, x: Tensor) -> Tensor:
        """The mixture of what the components say: of probabilities, or of numbers."""
        # [components, batch, ..., classes]
        outputs = each(self.net.whole, blocks["components"], x)
        return current_task().mix(outputs, self.log_mixture(blocks))

    def joining(self) -> list[Phase]:
        return []  # a new client only needs its mixture: the E-step

    def degenerate(self) -> list[str]:
        if self.components == 1:
            return ["components = 1 makes FedEM FedAvg"]
        return [never_apart("FedEM", "components")] if not drawn(self.net) else []
