"""FedAvg whose clients keep their features near those of the shared model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch.nn.functional as F
from torch import Tensor

from fedblocks.core.blocks import Block, Fresh, Private, Shared
from fedblocks.core.client import Client
from fedblocks.core.description import Paper
from fedblocks.core.options import AtLeast, Help, Positive
from fedblocks.core.parts import Blocks
from fedblocks.core.phases import Batch, Phase
from fedblocks.methods.fedavg import FedAvg


@dataclass(frozen=True, eq=False)
class Moon(FedAvg):
    """Contrast between models: features like the shared model's, unlike the client's
    last ones (Li et al., 2021).
    """

    paper: ClassVar[Paper] = Paper(
        "Model-Contrastive Federated Learning", "Li et al.", 2021, "CVPR"
    )

    strength: Annotated[float, AtLeast(0), Help("mu: of the contrast", usual="1 to 10")] = 1.0
    temperature: Annotated[float, Positive(), Help("tau: of the similarities", usual="0.5")] = 0.5

    def blocks(self) -> dict[str, Block]:
        previous = Private(self.net.whole)  # the model after the client's last round
        return {"model": Shared(self.net.whole), "sent": Fresh(), "previous": previous}

    def prepare(self, blocks: Blocks, client: Client) -> Blocks:
        return {**blocks, "sent": blocks["model"]}

    def phases(self) -> list[Phase]:
        return [Phase((self.step("model", loss=self.contrastive_loss),), self.epochs)]

    def contrastive_loss(self, blocks: Blocks, batch: Batch) -> Tensor:
        """-log e^(sent / tau) / (e^(sent / tau) + e^(previous / tau)) of the
        similarities, beside the usual loss.
        """
        logits, z = self.net.with_features(blocks["model"], batch.x)
        sent = self.likeness(z, blocks["sent"], batch.x)  # [batch]
        previous = self.likeness(z, blocks["previous"], batch.x)  # [batch]
        contrast = F.softplus((previous - sent) / self.temperature)
        return batch.loss(logits) + self.strength * batch.mean(contrast)

    def likeness(self, z: Tensor, model: dict[str, Tensor], x: Tensor) -> Tensor:
        """The cosine between features and those of another model, for each example: [batch]."""
        return F.cosine_similarity(z.flatten(1), self.net.features(model, x).flatten(1))

    def finish(self, blocks: Blocks, start: Blocks, client: Client) -> Blocks:
        return {**blocks, "previous": blocks["model"]}

    def joining(self) -> list[Phase]:
        return []  # what clients keep serves training only: a new one is given the shared model

    def degenerate(self) -> list[str]:
        return ["strength = 0 makes MOON FedAvg"] if self.strength == 0 else []
