"""One factor at a time, so that the mean of products is the product of means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from fedblocks.core.blocks import Block, Frozen, Shared
from fedblocks.core.client import Client
from fedblocks.core.description import Paper, by_options
from fedblocks.core.options import Conflict, Help
from fedblocks.core.parts import Blocks
from fedblocks.core.phases import Phase
from fedblocks.methods.lora.adapted import DOWN, UP, AdapterMethod


@dataclass(frozen=True, eq=False)
class FFALoRA(AdapterMethod):
    """A is frozen, B is averaged (Sun et al., 2024); or they take turns, B in the first round, A in
    the second, while the other rests (RoLoRA: Chen et al., 2025).
    """

    paper: ClassVar[Paper] = Paper(
        "Improving LoRA in Privacy-preserving Federated Learning", "Sun et al.", 2024, "ICLR"
    )
    personal_by: ClassVar[str] = "none"
    weight_label: ClassVar[str] = by_options(
        "n",
        lambda m: {} if m.turns == "B" else {DOWN: "n, every second round", UP: "n, in between"},
    )

    turns: Annotated[
        Literal["B", "alternate"], Help('"B": only B is ever trained; "alternate": RoLoRA')
    ] = "B"

    def conflicts(self) -> list[Conflict]:
        problems = super().conflicts()
        if problems:
            return problems
        zero = self.adapted.zero_factors
        dead = next((name for name in self.adapted.lora_A.names if name in zero), None)
        if dead is not None and self.turns == "B":
            why = (
                f'"{dead}" starts at zero, as those of embeddings do, and would freeze the adapter'
            )
            fix = 'use turns="alternate", or other targets'
            problems.append(Conflict("turns", why, fix, with_net=True))
        return problems

    def blocks(self) -> dict[str, Block]:
        home = Frozen if self.turns == "B" else Shared
        factors = {DOWN: home(self.adapted.lora_A), UP: Shared(self.adapted.lora_B)}
        return {**factors, **self.head_block()}

    def phases(self) -> list[Phase]:
        if self.turns == "B":
            return [Phase((self.step(*self.trained(UP)),), self.epochs)]
        both = self.step(*self.trained(DOWN, UP), rests=self.resting)
        return [Phase((both,), self.epochs)]

    def resting(self, blocks: Blocks, client: Client) -> dict[str, Tensor]:
        """The factor whose turn it is not."""
        first = _is_first(client)
        return {DOWN: first, UP: ~first}

    def writes(self, blocks: Blocks, client: Client) -> dict[str, Tensor]:
        if self.turns == "B":
            return {}
        first = _is_first(client).to(client.size.dtype)
        return {DOWN: (client.size * (1 - first)).view(1), UP: (client.size * first).view(1)}


def _is_first(client: Client) -> Tensor:
    """Whether it is B's turn: in rounds 0, 2, 4, ..."""
    return (torch.zeros_like(client.size) + client.round) % 2 == 0
