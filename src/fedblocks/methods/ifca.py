"""Clients choose one of several models, and train that one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fedblocks.core.arithmetic import each, pick
from fedblocks.core.blocks import Block, Fresh, Pool
from fedblocks.core.client import Client
from fedblocks.core.description import Paper
from fedblocks.core.method import Method
from fedblocks.core.options import AtLeast, Help
from fedblocks.core.parts import Blocks
from fedblocks.core.phases import Phase


@dataclass(frozen=True, eq=False)
class IFCA(Method):
    """Each client trains the model with the lowest loss on its training data (Ghosh et al., 2020)."""

    paper: ClassVar[Paper] = Paper(
        "An Efficient Framework for Clustered Federated Learning", "Ghosh et al.", 2020, "NeurIPS"
    )
    personal_by: ClassVar[str] = "cohort"
    weight_label: ClassVar[str | Mapping[str, str]] = "n x choice"

    clusters: Annotated[int, AtLeast(1), Help("models on the server", usual="2 to 5")] = 3

    def blocks(self) -> dict[str, Block]:
        return {"clusters": Pool(self.net.whole, size=self.clusters, of="model"), "choice": Fresh(), "model": Fresh()}

    def prepare(self, blocks: Blocks, client: Client) -> Blocks:
        chosen = self.losses(blocks, client).argmin()
        choice = (torch.arange(self.clusters, device=chosen.device) == chosen).to(client.size.dtype)
        return {**blocks, "choice": {"value": choice}, "model": pick(blocks["clusters"], chosen)}

    def losses(self, blocks: Blocks, client: Client) -> Tensor:
        """The loss of every model on the client's training data: [clusters]."""
        logits = each(self.net.whole, blocks["clusters"], client.x)  # [clusters, examples, ...]
        return torch.stack([client.total_loss(rows) for rows in logits])

    def predict(self, blocks: Blocks, x: Tensor) -> Tensor:
        return self.net(blocks["model"], x)

    def phases(self) -> list[Phase]:
        return [Phase((self.step("model"),), self.epochs)]

    def writes(self, blocks: Blocks, client: Client) -> dict[str, Tensor]:
        return {"clusters": client.size * blocks["choice"]["value"]}

    def portrait(self, blocks: Blocks, client: Client) -> dict[str, Tensor]:
        return {"choice": blocks["choice"]["value"]}

    def degenerate(self) -> list[str]:
        return ["clusters = 1 makes IFCA FedAvg"] if self.clusters == 1 else []
