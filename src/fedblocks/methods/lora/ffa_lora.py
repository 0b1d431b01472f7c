"""One factor at a time, so that the mean of products is the product of means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from fedblocks.core.blocks import Block, Frozen, Shared
from fedblocks.core.client import Client
from fedblocks.core.description import Paper, by_options
from fedblocks.core.options import Conflict, Help
from fedblocks.core.parts import Blocks, Params
from fedblocks.core.phases import Batch, Phase
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
        both = self.step(*self.trained(DOWN, UP), loss=self.loss_of_turn)
        return [Phase((both,), self.epochs)]

    def loss_of_turn(self, blocks: Blocks, batch: Batch) -> Tensor:
        """The loss as a function of the factor whose turn it is."""
        first = _is_first(batch.client.round)
        down = _held(blocks[DOWN], first)
        up = _held(blocks[UP], ~first)
        return batch.loss(self.with_factors(blocks, down, up, batch.x))

    def finish(self, blocks: Blocks, start: Blocks, client: Client) -> Blocks:
        if self.turns == "B":
            return blocks
        first = _is_first(client.round)  # weight decay moves what rests, too
        down = _chosen(first, start[DOWN], blocks[DOWN])
        return {**blocks, DOWN: down, UP: _chosen(first, blocks[UP], start[UP])}

    def writes(self, blocks: Blocks, client: Client) -> dict[str, Tensor]:
        if self.turns == "B":
            return {}
        first = _is_first(client.round).to(client.size.dtype)
        return {DOWN: (client.size * (1 - first)).view(1), UP: (client.size * first).view(1)}


def _is_first(round: Any) -> Tensor:
    """Whether it is B's turn: in rounds 0, 2, 4, ..."""
    return torch.as_tensor(round) % 2 == 0


def _held(params: Params, rests: Tensor) -> Params:
    """The same numbers, without a gradient where they rest."""
    return {name: torch.where(rests, value.detach(), value) for name, value in params.items()}


def _chosen(first: Tensor, one: Params, other: Params) -> Params:
    return {name: torch.where(first, value, other[name]) for name, value in one.items()}
