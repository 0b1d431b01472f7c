"""The study of reactions: how they are dealt to clients, and the BERT that is the base."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from adapters.cells import BASE, CENTRAL, Schedule, Settings
from adapters.study import LATER, METHODS, Study
from reactions.bert import Classifier
from reactions.prepare import Material
from torch import nn

import fedblocks as fb
from fedblocks.core.lora import LoraNet
from fedblocks.data.dirichlets import dirichlet_clients
from fedblocks.data.partition import Partition
from fedblocks.data.partitions import iid


@dataclass(frozen=True)
class ReactionSettings(Settings):
    size: int = 200  # reactions of a client, of which 60 % train, 20 % choose, 20 % test
    skew: float = 0.1  # of the Dirichlet draw of each client's classes


TINY = ReactionSettings(
    clients=4, unseen=1, size=20, rounds=1, batch=6, central_batch=12, rates=(1e-3,), seeds=(0,)
)
BY_SPLIT = {
    "iid": (CENTRAL, "fedavg_lora"),
    "dirichlet": tuple(name for name in METHODS if name not in (CENTRAL, BASE)),
}


@dataclass(frozen=True, eq=False)
class ReactionStudy(Study):
    settings: ReactionSettings
    material: Material
    schedule: ClassVar[Schedule] = Schedule(BY_SPLIT, LATER)

    def partition(self, split: str, seed: int) -> Partition:
        s, labels = self.settings, self.material.labels
        count = s.clients + s.unseen
        if split == "dirichlet":
            return dirichlet_clients(labels, count, s.skew, seed=seed, size=s.size)
        rows = np.random.Generator(np.random.PCG64(seed)).permutation(len(labels))[: count * s.size]
        dealt = iid(labels[rows], count, seed=seed)
        return replace(dealt, rows=replace(dealt.rows, index=rows[dealt.rows.index]))

    def partition_hash(self, split: str, seed: int) -> str:
        return self.partition(split, seed).hash()

    def federation(self, split: str, seed: int) -> fb.Federation:
        tokens, labels = map(torch.from_numpy, (self.material.tokens, self.material.labels))
        how = {"split": (0.6, 0.2, 0.2), "seed": seed, "classes": int(labels.max()) + 1}
        built = fb.Federation.from_arrays(tokens, labels, self.partition(split, seed), **how)
        return built.compact().to(self.device)

    def make_module(self) -> nn.Module:
        """The base as it is stored, and a new head."""
        module = Classifier(self.material.config, int(self.material.labels.max()) + 1)
        module.bert.load_state_dict(self.material.base)
        return module

    def net(self, rank: int) -> LoraNet:
        targets = ("query", "value")
        return fb.lora(self.make_module, rank, self.settings.alpha, targets, head="classifier")
