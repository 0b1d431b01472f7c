"""Clients choose one of several models, and train that one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor

from fedblocks.core.arithmetic import pick
from fedblocks.core.blocks import Block, Fresh, Pool
from fedblocks.core.client import Client
from fedblocks.core.description import Paper
from fedblocks.core.method import Method
from fedblocks.core.options import AtLeast, Help
from fedblocks.core.parts import Blocks
from fedblocks.core.phases import Phase
from fedblocks.methods._common.membership import best_slot, membership


@dataclass(frozen=True, eq=False)
class IFCA(Method):
    """Each client trains the model with the lowest loss on its training data (Ghosh et
    al., 2020).
    """

    paper: ClassVar[Paper] = Paper(
        "An Efficient Framework for Clustered Federated Learning", "Ghosh et al.", 2020, "NeurIPS"
    )
    personal_by: ClassVar[str] = "cohort"
    weight_label: ClassVar[str | Mapping[str, str]] = "n x choice"

    clusters: Annotated[int, AtLeast(1), Help("models on the server", usual="2 to 5")] = 3

    def blocks(self) -> dict[str, Block]:
        return {
            "clusters": Pool(self.net.whole, size=self.clusters, of="model"),
            "choice": Fresh(),
            "model": Fresh(),
        }

    # algorithm 1: estimate the cluster identity
    def prepare(self, blocks: Blocks, client: Client) -> Blocks:
        chosen = best_slot(self.net.whole, blocks["clusters"], client)  # argmin_j F_i(theta_j)
        choice = membership(chosen, self.clusters, client)  # s_i, one-hot
        return {**blocks, "choice": {"value": choice}, "model": pick(blocks["clusters"], chosen)}

    def phases(self) -> list[Phase]:  # option II, model averaging: LocalUpdate of the chosen model
        return [Phase((self.step("model"),), self.epochs)]

    # theta_j <- mean over clients with s_ij = 1
    def writes(self, blocks: Blocks, client: Client) -> dict[str, Tensor]:
        return {"clusters": client.size * blocks["choice"]["value"]}

    def predict(self, blocks: Blocks, x: Tensor) -> Tensor:
        return self.net(blocks["model"], x)

    def portrait(self, blocks: Blocks, client: Client) -> dict[str, Tensor]:
        return {"choice": blocks["choice"]["value"]}

    def degenerate(self) -> list[str]:
        return ["clusters = 1 makes IFCA FedAvg"] if self.clusters == 1 else []
