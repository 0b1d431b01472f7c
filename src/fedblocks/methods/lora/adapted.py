"""What methods over adapters have in common: the blocks of two factors and a head, and ranks that
clients may have of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from fedblocks.core.blocks import Block, Fresh, Private, Shared
from fedblocks.core.client import Client
from fedblocks.core.lora import LoraNet
from fedblocks.core.method import Method, join
from fedblocks.core.options import NET, Conflict, Help, Length
from fedblocks.core.parts import Blocks, Params

DOWN, UP, HEAD = "lora.A", "lora.B", "head"
NEEDS_ADAPTERS = "the method needs a net with adapters"
RATIO = "scale"  # of a client whose rank is its own, in units of the net's

Ranks = Annotated[
    tuple[int, ...] | None,
    Length(1),
    Help("ranks of the clients, in turn by their number; default: all have the net's"),
]


@dataclass(frozen=True, eq=False)
class AdapterMethod(Method):
    """A method whose net has adapters; the home of its head has to be said."""

    head: Annotated[
        Literal["shared", "private"] | None,
        Help("home of what the net trains as a whole; to be said if there is such"),
    ] = None

    def conflicts(self) -> list[Conflict]:
        if not isinstance(self.net, LoraNet):
            fix = "make one: fb.lora(net, rank=8)"
            return [Conflict(NET, NEEDS_ADAPTERS, fix, with_net=True)]
        full = self.net.full_head
        if full is not None and self.head is None:
            why = f'"{full.names[0]}" trains and has no home'
            return [Conflict("head", why, 'say head="shared" or head="private"', with_net=True)]
        if full is None and self.head is not None:
            why = "the net trains nothing as a whole"
            return [Conflict("head", why, "leave it out", with_net=True)]
        return []

    @property
    def adapted(self) -> LoraNet:
        """The net, which has adapters."""
        if not isinstance(self.net, LoraNet):
            raise TypeError(f"{type(self).__name__} needs a net with adapters")
        return self.net

    def head_block(self) -> dict[str, Block]:
        full = self.adapted.full_head
        if full is None:
            return {}
        return {HEAD: Shared(full) if self.head == "shared" else Private(full)}

    def trained(self, *factors: str) -> tuple[str, ...]:
        """The names of some factors, and of the head if there is one."""
        return (*factors, *self.head_block())

    def predict(self, blocks: Blocks, x: Tensor) -> Tensor:
        return self.with_factors(blocks, blocks[DOWN], blocks[UP], x)

    def with_factors(self, blocks: Blocks, down: Params, up: Params, x: Tensor) -> Tensor:
        """Logits with these adapters, and the client's head."""
        return self.net(join(down, up, blocks.get(HEAD, {})), x)


@dataclass(frozen=True, eq=False)
class RankedMethod(AdapterMethod):
    """Clients may have ranks of their own. The server's factors have the net's rank r and scale
    alpha / r. A client of rank r_k reads the first r_k rows of A and columns of B, and zero in the
    others' place, which then stays zero; it trains under its own scale alpha / r_k, and what it
    writes is in units of the server's again.
    """

    ranks: Ranks = None

    def conflicts(self) -> list[Conflict]:
        problems = super().conflicts()
        if problems:
            return problems
        most = self.adapted.spec.rank
        if self.ranks is not None and not all(1 <= rank <= most for rank in self.ranks):
            why = f"a client's rank is 1 to {most}, the net's"
            fix = "make the net with the largest rank"
            problems.append(Conflict("ranks", why, fix, with_net=True))
        return problems

    def remarks(self, tags: Mapping[str, Tensor]) -> list[str]:
        most = self.adapted.spec.rank
        if self.ranks is None or max(self.ranks) == most:
            return []
        largest = max(self.ranks)
        return [
            f"ranks = {list(self.ranks)} are all below the net's rank {most}: factors above rank "
            f"{largest} stay zero, and are sent; make the net with rank={largest} and "
            f"alpha={self.adapted.spec.alpha:g}"
        ]

    def ratio_block(self) -> dict[str, Block]:
        return {} if self.ranks is None else {RATIO: Fresh()}

    def prepare(self, blocks: Blocks, client: Client) -> Blocks:
        if self.ranks is None:
            return blocks
        most = self.adapted.spec.rank
        table = torch.tensor(self.ranks, device=client.id.device)
        rank = table.index_select(0, (client.id % len(self.ranks)).view(1)).squeeze(0)  # []
        ratio = most / rank.to(self.net.dtype)
        kept = (torch.arange(most, device=client.id.device) < rank).to(self.net.dtype)  # [rank]
        down = {name: value * kept[:, None] for name, value in blocks[DOWN].items()}
        up = {name: value * kept / ratio for name, value in blocks[UP].items()}
        return {**blocks, DOWN: down, UP: up, RATIO: {"value": ratio}}

    def finish(self, blocks: Blocks, start: Blocks, client: Client) -> Blocks:
        if self.ranks is None:
            return blocks
        up = self.scaled(blocks)
        return {**blocks, UP: up, RATIO: {"value": torch.ones_like(blocks[RATIO]["value"])}}

    def scaled(self, blocks: Blocks) -> Params:
        """B in units of the net's scale."""
        if self.ranks is None:
            return blocks[UP]
        return {name: value * blocks[RATIO]["value"] for name, value in blocks[UP].items()}

    def predict(self, blocks: Blocks, x: Tensor) -> Tensor:
        return self.with_factors(blocks, blocks[DOWN], self.scaled(blocks), x)
