"""FedAvg of adapters, factor by factor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from fedblocks.core.blocks import Block, Shared
from fedblocks.core.client import Client
from fedblocks.core.description import Paper, by_options
from fedblocks.core.options import Help
from fedblocks.core.parts import Blocks, Params
from fedblocks.core.phases import Phase
from fedblocks.methods.lora.adapted import DOWN, UP, RankedMethod

_SMALL = 1e-6  # only shares matter; weights stay below the number of a client's labels


@dataclass(frozen=True, eq=False)
class FedAvgLoRA(RankedMethod):
    """Both factors are averaged, each for itself (FedIT: Zhang et al., 2023); with ranks of the
    clients' own and weights by norm, HetLoRA without its pruning (Cho et al., 2024).

    The mean of products is not the product of means: they differ by the covariance of the factors.
    """

    paper: ClassVar[Paper] = Paper(
        "Towards Building the Federated GPT: Federated Instruction Tuning",
        "Zhang et al.",
        2023,
        "arXiv 2305.05644",
    )
    personal_by: ClassVar[str] = "none"
    weight_label: ClassVar[str] = by_options(
        "n", lambda m: {} if m.weight == "samples" else dict.fromkeys((DOWN, UP), "|s B A|")
    )

    weight: Annotated[
        Literal["samples", "norm"],
        Help('a client counts by its examples, or by the size of its product ("norm", HetLoRA)'),
    ] = "samples"

    def blocks(self) -> dict[str, Block]:
        factors = {DOWN: Shared(self.adapted.lora_A), UP: Shared(self.adapted.lora_B)}
        return {**factors, **self.head_block(), **self.ratio_block()}

    def phases(self) -> list[Phase]:
        return [Phase((self.step(*self.trained(DOWN, UP)),), self.epochs)]

    def writes(self, blocks: Blocks, client: Client) -> dict[str, Tensor]:
        if self.weight == "samples":
            return {}
        changes = self.adapted.changes({**blocks[DOWN], **blocks[UP]})
        weight = _SMALL * length_of(changes) * (client.size > 0)
        return {DOWN: weight.view(1), UP: weight.view(1)}


def length_of(changes: Params) -> Tensor:
    """The Frobenius norm of all matrices together: []."""
    return torch.stack([value.square().sum() for value in changes.values()]).sum().sqrt()
