"""Averages of products: sum p_k s B_k A_k, whatever the factors are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from fedblocks.core.blocks import Block, Generated, Read, Shared
from fedblocks.core.client import Client
from fedblocks.core.description import Paper, by_options
from fedblocks.core.lora import LoraNet
from fedblocks.core.options import Help
from fedblocks.core.parts import Blocks, Params
from fedblocks.core.phases import Phase
from fedblocks.core.random import fold, uniform
from fedblocks.core.server import Cohort
from fedblocks.core.uploads import Uploads
from fedblocks.methods.lora.adapted import DOWN, UP, RankedMethod

DELTA = "delta"  # what all rounds have added to the base


@dataclass(frozen=True, eq=False)
class Changes:
    """A matrix for each layer with an adapter, [outputs, inputs], zero at the start."""

    net: LoraNet

    def init(self, seed: int) -> Params:
        shapes = self.net.shapes
        sizes = {
            path: (shapes[f"{path}.lora_B"][0], shapes[f"{path}.lora_A"][1])
            for path in self.net.targets
        }
        return {path: torch.zeros(size, dtype=self.net.dtype) for path, size in sizes.items()}


@dataclass(frozen=True, eq=False)
class ProductLoRA(RankedMethod):
    """The server averages products M = sum p_k s B_k A_k. "svd": the best factors of M are sent
    (FlexLoRA: Bai et al., 2024). "stack": M is added to the base, and adapters start anew in every
    round (FLoRA: Wang et al., 2024). "residual": factors are averaged, and what that misses of M is
    added to the base (FedEx-LoRA: Singhal et al., 2025).
    """

    paper: ClassVar[Paper] = Paper(
        "Federated Fine-tuning of Large Language Models under Heterogeneous Tasks and Client "
        "Resources",
        "Bai et al.",
        2024,
        "NeurIPS",
    )
    personal_by: ClassVar[str] = "none"
    weight_label: ClassVar[str] = by_options("n", lambda method: {DELTA: "nothing"})

    keep: Annotated[
        Literal["svd", "stack", "residual"], Help("what becomes of the mean of products")
    ] = "svd"

    def remarks(self, tags: Mapping[str, Tensor]) -> list[str]:
        remarks = super().remarks(tags)
        if self.keep_optimizer and self.keep != "residual":
            anew = "the server makes new factors in every round"
            remarks.append(
                f'keep_optimizer with keep = "{self.keep}": {anew}, and clients go on with moments '
                "of those before; leave keep_optimizer out"
            )
        return remarks

    def blocks(self) -> dict[str, Block]:
        down, up = self.adapted.lora_A, self.adapted.lora_B
        factors: dict[str, Block] = {DOWN: Shared(down), UP: Shared(up)}
        if self.keep != "svd":
            factors[DELTA] = Shared(Changes(self.adapted))  # nobody writes it but the server
        return {**factors, **self.head_block(), **self.ratio_block()}

    def reads(self, server: Blocks, cohort: Cohort) -> dict[str, Read]:
        return {DOWN: Generated({}), UP: Generated({})} if self.keep == "stack" else {}

    def prepare(self, blocks: Blocks, client: Client) -> Blocks:
        if self.keep == "stack":
            blocks = {**blocks, **self.new_adapters(client)}
        return super().prepare(blocks, client)

    def new_adapters(self, client: Client) -> Blocks:
        """Adapters at a start of the client's own, drawn as the net's: one factor is zero."""
        net = self.adapted
        return {
            DOWN: {k: self.new_factor(k, i, client) for i, k in enumerate(net.lora_A.names)},
            UP: {k: self.new_factor(k, i, client) for i, k in enumerate(net.lora_B.names)},
        }

    def new_factor(self, name: str, number: int, client: Client) -> Tensor:
        """A: uniform as wide as its inputs say; B of an embedding, whose A is zero: normal."""
        shape, dtype = tuple(self.adapted.shapes[name]), self.net.dtype
        if name in self.adapted.zero_factors:
            return torch.zeros(shape, dtype=dtype, device=client.key.device)
        drawn = uniform(fold(client.key, number), shape).to(dtype)
        is_normal = name in self.adapted.lora_B.names
        start: Tensor = torch.special.ndtri(drawn) if is_normal else 2 * drawn - 1
        return start if is_normal else start.mul(shape[1] ** -0.5)

    def predict(self, blocks: Blocks, x: Tensor) -> Tensor:
        down, up = blocks[DOWN], self.scaled(blocks)
        if self.keep != "svd":
            down, up = self.beside_delta(down, up, blocks[DELTA])
        return self.with_factors(blocks, down, up, x)

    def beside_delta(self, down: Params, up: Params, delta: Params) -> tuple[Params, Params]:
        """Wider factors whose product is delta and theirs: [A; 1] and [B, delta / s]."""
        scale = self.adapted.spec.scale
        wide_down, wide_up = {}, {}
        for path, change in delta.items():
            a, b = down[f"{path}.lora_A"], up[f"{path}.lora_B"]
            one = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
            wide_down[f"{path}.lora_A"] = torch.cat([a, one], 0)
            wide_up[f"{path}.lora_B"] = torch.cat([b, change / scale], -1)
        return wide_down, wide_up

    def phases(self) -> list[Phase]:
        return [Phase((self.step(*self.trained(DOWN, UP)),), self.epochs)]

    def writes(self, blocks: Blocks, client: Client) -> dict[str, Tensor]:
        return {} if self.keep == "svd" else {DELTA: torch.zeros_like(client.size).view(1)}

    def conclude(self, server: Blocks, before: Blocks, uploads: Uploads, cohort: Cohort) -> Blocks:
        if any(float(uploads[name].weights.sum()) == 0 for name in (DOWN, UP)):
            return server
        mean = self.mean_of_products(uploads)
        if self.keep == "svd":
            return {**server, **self.best_factors(mean)}
        missed = mean
        if self.keep == "residual":
            missed = self.adapted.changes(_one({**server[DOWN], **server[UP]}))
            missed = {path: value - missed[path] for path, value in mean.items()}
        added = {k: (v + missed[k]).to(v.dtype) for k, v in before[DELTA].items()}
        return {**server, DELTA: added}

    def mean_of_products(self, uploads: Uploads) -> Params:
        """Path -> sum p_k s B_k A_k, in double precision: [outputs, inputs]."""
        copies = {**uploads[DOWN].copies, **uploads[UP].copies}
        weights = uploads[DOWN].weights[:, 0]  # [clients]
        shares = weights / weights.sum()
        products = self.adapted.changes({name: value.double() for name, value in copies.items()})
        return {path: torch.tensordot(shares, value, 1) for path, value in products.items()}

    def best_factors(self, mean: Params) -> Blocks:
        """The factors of the net's rank whose product is nearest to the mean; each client's own
        rank of them is the nearest of that rank.
        """
        rank, scale = self.adapted.spec.rank, self.adapted.spec.scale
        down, up = {}, {}
        for path, matrix in mean.items():
            u, s, v = torch.linalg.svd(matrix / scale, full_matrices=False)
            u, v = _with_signs(u, v)
            root = s[:rank].sqrt()  # shared evenly, so that both factors learn at one pace
            down[f"{path}.lora_A"] = (root[:, None] * v[:rank])[None].to(self.net.dtype)
            up[f"{path}.lora_B"] = (u[:, :rank] * root)[None].to(self.net.dtype)
        return {DOWN: down, UP: up}


def _with_signs(u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Singular vectors are known up to a sign, and last bits would choose it: here the largest
    number of each left one is positive.
    """
    largest = u.abs().argmax(0, keepdim=True)
    signs = u.gather(0, largest).sign()  # [1, vectors]
    return u * signs, v * signs.mT


def _one(slots: Params) -> Params:
    """The copy in a single slot."""
    return {name: value[0] for name, value in slots.items()}
