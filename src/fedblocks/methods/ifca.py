"""Clients choose one of several models, and train that one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from fedblocks.core.arithmetic import pick
from fedblocks.core.blocks import Block, Fresh, Pool, Read, Selection, ServerOnly
from fedblocks.core.client import Client
from fedblocks.core.description import Paper
from fedblocks.core.method import Method
from fedblocks.core.options import AtLeast, Conflict, Help
from fedblocks.core.parts import Blocks, Value, is_statistic
from fedblocks.core.phases import Phase
from fedblocks.core.server import Cohort
from fedblocks.core.uploads import Uploads
from fedblocks.methods._common.clustering import MOST
from fedblocks.methods._common.draws import drawn_in_outputs
from fedblocks.methods._common.membership import (
    average_members,
    best_slot,
    first_changes,
    group_clients,
    membership,
)


@dataclass(frozen=True, eq=False)
class IFCA(Method):
    """Each client trains the model with the lowest loss on its training data (Ghosh et
    al., 2020).
    """

    paper: ClassVar[Paper] = Paper(
        "An Efficient Framework for Clustered Federated Learning", "Ghosh et al.", 2020, "NeurIPS"
    )
    personal_by: ClassVar[str] = "cluster"
    weight_label: ClassVar[str | Mapping[str, str]] = "n x choice"

    clusters: Annotated[
        int | Literal["auto"],
        AtLeast(1),
        Help('models on the server; "auto": as many as the first updates show', usual="2 to 5"),
    ] = 3
    start: Annotated[
        Literal["random", "updates"],
        Help('models begin at "random", or as means of clusters of the first "updates"'),
    ] = "random"

    def conflicts(self) -> list[Conflict]:
        if self.start == "updates":
            if self.statistics == "local" and any(map(is_statistic, self.net.names)):
                why = "running statistics of a cluster cannot stay on the clients"
                return [Conflict("statistics", why, 'use statistics = "average"', with_net=True)]
        elif self.clusters == "auto":
            why = "the number of clusters is that of the first updates"
            return [Conflict("clusters", why, 'say a number, or use start = "updates"')]
        return []

    def blocks(self) -> dict[str, Block]:
        blocks: dict[str, Block] = {
            "clusters": Pool(self.net.whole, size=self.models, of="model"),
            "choice": Fresh(),
            "model": Fresh(),
        }
        if self.start == "random":
            return blocks
        begun = Value(torch.zeros(1, dtype=self.net.dtype))  # models that have members
        return {**blocks, "begun": ServerOnly(begun)}

    @property
    def models(self) -> int:
        return MOST if self.clusters == "auto" else self.clusters

    # start "updates": the first round is one of FedAvg, with one model for all

    def reads(self, server: Blocks, cohort: Cohort) -> dict[str, Read]:
        if self.start == "random":
            return {}
        begun = max(int(server["begun"]["value"]), 1)
        models = torch.arange(begun, device=cohort.ids.device)
        return {"clusters": Selection(models.expand(len(cohort), -1))}

    def single_uploads(self, before: Blocks, cohort: Cohort) -> Collection[str]:
        begun = self.start == "random" or bool(before["begun"]["value"] > 0)
        return () if begun else ("clusters",)

    def conclude(self, server: Blocks, before: Blocks, uploads: Uploads, cohort: Cohort) -> Blocks:
        """After the first round, every model is the mean of clients that changed alike."""
        if self.start == "random" or bool(before["begun"]["value"] > 0):
            return server
        upload = uploads["clusters"].keep(uploads["clusters"].weights.sum(1) > 0)
        if len(upload.ids) == 0:
            return server
        changes = first_changes(before, {"clusters": upload}, "clusters")
        chosen = group_clients(changes, upload.weights.sum(1), self.clusters)  # [clients]
        models = average_members(before["clusters"], upload, chosen, self.models)
        begun = torch.full_like(server["begun"]["value"], float(chosen.max() + 1))
        return {**server, "clusters": models, "begun": {"value": begun}}

    # algorithm 1: estimate the cluster identity
    def prepare(self, blocks: Blocks, client: Client) -> Blocks:
        chosen = best_slot(self.net.whole, blocks["clusters"], client)  # argmin_j F_i(theta_j)
        choice = membership(chosen, self.models, client)  # s_i, one-hot
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
        if self.clusters == 1:
            return ["clusters = 1 makes IFCA FedAvg"]
        if self.start == "random" and not drawn_in_outputs(self.net):
            why = "all models begin alike, as the net keeps its weights: all clients choose the"
            fix = 'start = "updates" parts them'
            return [f'start = "random" makes IFCA FedAvg: {why} same one for ever; {fix}']
        return []
