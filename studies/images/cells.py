"""The study of images: which fine classes a client has, and the EfficientNet that is the base."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from adapters.cells import BASE, CENTRAL, Schedule, Settings
from adapters.study import LATER, METHODS, Study
from adapters.table import Questions, usual_questions
from images.lite import Lite0
from images.prepare import Material

import fedblocks as fb
from fedblocks.core.lora import LoraNet
from fedblocks.data.partition import Partition
from fedblocks.data.partitions import iid
from fedblocks.data.rows import Ints, Rows

TARGETS = ("expand_conv", "project_conv", "conv_head")  # all convolutions with 1x1 filters


@dataclass(frozen=True)
class ImageSettings(Settings):
    rounds: int = 10
    per_class: int = 10  # images of each coarse class; 60 % train, 20 % choose, 20 % test
    side: int = 96  # pixels that an image is made larger to


TINY = ImageSettings(
    clients=4,
    unseen=1,
    per_class=5,
    side=32,
    rounds=1,
    batch=30,
    central_batch=60,
    rates=(1e-3,),
    seeds=(0,),
)
BY_SPLIT = {
    "iid": (CENTRAL, "fedavg_lora"),
    "fine": tuple(name for name in METHODS if name not in (CENTRAL, BASE)),
}


@dataclass(frozen=True, eq=False)
class ImageStudy(Study):
    settings: ImageSettings
    material: Material
    schedule: ClassVar[Schedule] = Schedule(BY_SPLIT, LATER)

    def partition(self, split: str, seed: int) -> Partition:
        s = self.settings
        count = s.clients + s.unseen
        rows = deal_fine_classes(self.material, count, s.per_class, seed)  # [clients, images]
        if split == "fine":
            size = rows.shape[1]
            offsets = np.arange(0, rows.size + 1, size)
            return Partition(Rows(rows.reshape(-1), offsets), {"name": "fine", "seed": seed})
        dealt = iid(self.material.coarse[rows.reshape(-1)], count, seed=seed)
        index = rows.reshape(-1)[dealt.rows.index]
        return Partition(Rows(index, dealt.rows.offsets), {"name": "iid", "seed": seed})

    def partition_hash(self, split: str, seed: int) -> str:
        return self.partition(split, seed).hash()

    def federation(self, split: str, seed: int) -> fb.Federation:
        x = torch.from_numpy(self.material.images).float()
        y = torch.from_numpy(self.material.coarse)
        how = {"split": (0.6, 0.2, 0.2), "seed": seed, "stratified": True, "classes": self.classes}
        built = fb.Federation.from_arrays(x, y, self.partition(split, seed), **how)
        return built.compact().to(self.device)

    @property
    def classes(self) -> int:
        return int(self.material.coarse.max()) + 1

    def make_module(self) -> Lite0:
        """The base as it is stored, and a new head."""
        module = Lite0(self.settings.side, self.classes)
        missing = module.load_state_dict(self.material.base, strict=False).missing_keys
        new = [name for name in missing if not name.endswith("num_batches_tracked")]
        if new != ["fc.weight", "fc.bias"]:
            raise SystemExit(f"the stored base lacks {', '.join(new)}")
        return module

    def net(self, rank: int) -> LoraNet:
        return fb.lora(self.make_module, rank, self.settings.alpha, TARGETS, head="fc")


def deal_fine_classes(material: Material, clients: int, per_class: int, seed: int) -> Ints:
    """Each client has one fine class of every coarse one, and equally many images of it; fine
    classes have as equally many clients as can be. No image has two clients: [clients, images].
    """
    draw = np.random.default_rng(seed)
    columns = []
    for coarse in np.unique(material.coarse):
        fine = np.unique(material.fine[material.coarse == coarse])
        own = draw.permutation(np.resize(draw.permutation(fine), clients))  # of each client
        rows = np.empty((clients, per_class), np.int64)
        for label in fine:
            left = draw.permutation(np.flatnonzero(material.fine == label))
            holders = np.flatnonzero(own == label)
            rows[holders] = left[: len(holders) * per_class].reshape(-1, per_class)
        columns.append(rows)
    return np.concatenate(columns, 1)


QUESTIONS = Questions(
    "{clients} clients with {per_class} images of one fine class of each of 20 coarse classes, "
    "{side} pixels wide, {rounds} rounds of one epoch, rank {rank} on all 1x1 convolutions, Adam",
    ImageStudy.schedule,
    usual_questions("fine"),
)
