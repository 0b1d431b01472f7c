"""The study of roles: which of them are clients, and the transformer that is the base."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from adapters.cells import BASE, CENTRAL, Schedule, Settings
from adapters.study import METHODS, Study
from adapters.table import Questions, usual_questions
from roles.prepare import LETTERS, STEPS, Material, make_net
from torch import nn

import fedblocks as fb
from fedblocks.core.lora import LoraNet
from fedblocks.data import Parts

TARGETS = ("self_attn", "linear1", "linear2")


@dataclass(frozen=True)
class RoleSettings(Settings):
    rounds: int = 10
    size: int = 100  # windows of a role: the first 60 train, 20 choose, the last 20 test
    steps: int = STEPS  # characters of a window


TINY = RoleSettings(
    clients=4, unseen=1, size=10, rounds=1, batch=3, central_batch=6, rates=(1e-3,), seeds=(0,)
)
# the net has no head of its own: the base predicts characters already
NAMES = tuple(name for name in METHODS if name not in (CENTRAL, BASE, "fedavg_lora_own_head"))
BY_SPLIT = {"iid": (CENTRAL, "fedavg_lora"), "roles": (BASE, *NAMES)}
LATER = ("product_svd", "ffa_lora", "product_stack")


@dataclass(frozen=True, eq=False)
class RoleStudy(Study):
    settings: RoleSettings
    material: Material
    schedule: ClassVar[Schedule] = Schedule(BY_SPLIT, LATER)

    def windows(self, split: str, seed: int) -> torch.Tensor:
        """Of the roles that a seed draws: [roles, size, steps + 1]. In the split "iid" every client
        has windows of all of them.
        """
        s, draw = self.settings, np.random.default_rng(seed)
        chosen = draw.permutation(len(self.material.roles))[: s.clients + s.unseen]
        characters = torch.from_numpy(self.material.characters[chosen]).long()
        begin = s.steps * torch.arange(s.size)[:, None]  # a window ends where the next one begins
        windows = characters[:, begin + torch.arange(s.steps + 1)]
        if split == "iid":
            dealt = torch.from_numpy(draw.permutation(len(chosen) * s.size))
            windows = windows.flatten(0, 1)[dealt].view_as(windows)
        return windows

    def federation(self, split: str, seed: int) -> fb.Federation:
        return self.on_cpu(split, seed).to(self.device)

    def on_cpu(self, split: str, seed: int) -> fb.Federation:
        first, second = int(0.6 * self.settings.size), int(0.8 * self.settings.size)
        cuts = (slice(0, first), slice(first, second), slice(second, None))
        parts = [
            Parts(*((own[cut, :-1], own[cut, 1:]) for cut in cuts))
            for own in self.windows(split, seed)
        ]
        return fb.Federation.from_parts(parts, classes=len(LETTERS))

    def partition_hash(self, split: str, seed: int) -> str:
        return self.on_cpu(split, seed).hash()

    def make_module(self) -> nn.Module:
        """The base as it is stored."""
        module = make_net().make()
        module.load_state_dict(self.material.base)
        return module

    def net(self, rank: int) -> LoraNet:
        return fb.lora(self.make_module, rank, self.settings.alpha, TARGETS)


QUESTIONS = Questions(
    "{clients} roles of {size} windows of {steps} characters, {rounds} rounds of one epoch, rank "
    "{rank} on attention and dense layers, Adam",
    RoleStudy.schedule,
    usual_questions("roles"),
)
