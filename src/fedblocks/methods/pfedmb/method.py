"""pFedMB, algorithm 1: every layer is a client's own mixture of shared branches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedblocks.core.arithmetic import mix
from fedblocks.core.blocks import Block, Pool, Private, Shared
from fedblocks.core.client import Client
from fedblocks.core.description import Paper, by_options
from fedblocks.core.method import join
from fedblocks.core.optimizers import SGD
from fedblocks.core.parts import Blocks, Params, Value
from fedblocks.core.phases import Batch, Phase
from fedblocks.methods._common.mixtures import STARTS, scale_gradient, steps_of_one_net
from fedblocks.methods.pfedmb.branches import on_simplex, without_negligible, without_small
from fedblocks.methods.pfedmb.compression import CompressedUpload


@dataclass(frozen=True, eq=False)
class PFedMB(CompressedUpload):
    """Layers of shared branches, averaged by how much clients rely on them (Mori et al., 2022)."""

    paper: ClassVar[Paper] = Paper(
        "Personalized Federated Learning with Multi-branch Architecture",
        "Mori et al.",
        2022,
        "arXiv 2211.07931",
    )
    weight_label: ClassVar[str | Mapping[str, str]] = by_options(
        "n x alpha", lambda method: "n x alpha" if method.sends_alpha else "n"
    )

    def blocks(self) -> dict[str, Block]:  # W_l,b on the server; alpha stays with its client
        layers, start = self.layers.items(), STARTS[self.start]
        pools = {n: Pool(p, self.branches, of=self.upload_of(n), start=start) for n, p in layers}
        rest = {"rest": Shared(self.rest)} if self.rest.names else {}
        rows = len(self.layers) if self.alpha_scope == "layer" else 1
        even = 0.0 if self.alpha_param == "softmax" else 1 / self.branches
        alpha = torch.full((rows, self.branches), even, dtype=self.net.dtype)  # [rows, branches]
        return {**pools, **rest, "alpha": Private(Value(alpha)), **self.change_blocks()}

    def alpha(self, blocks: Blocks) -> dict[str, Tensor]:
        """The weight of every branch of every layer: name -> [branches], adding up to 1."""
        value = blocks["alpha"]["value"]
        rows = torch.softmax(value, -1) if self.alpha_param == "softmax" else value
        return dict(zip(self.layers, rows.expand(len(self.layers), -1), strict=True))

    # W_l = sum_b alpha_l,b W_l,b
    def merge(self, blocks: Blocks, alpha: dict[str, Tensor]) -> Params:
        layers = [mix(blocks[layer], weights) for layer, weights in alpha.items()]
        return join(*layers, blocks.get("rest", {}))

    def predict(self, blocks: Blocks, x: Tensor) -> Tensor:
        alpha = self.alpha(blocks).items()
        kept = {layer: without_small(weights, self.drop_below) for layer, weights in alpha}
        return self.net(self.merge(blocks, kept), x)

    def loss(self, blocks: Blocks, batch: Batch) -> Tensor:
        return batch.loss(self.net(self.merge(blocks, self.alpha(blocks)), batch.x))

    def branch_loss(self, blocks: Blocks, batch: Batch) -> Tensor:
        """The same loss, whose gradients of branches are as large as `lr_scale` says."""
        if self.lr_scale == "printed":
            return self.loss(blocks, batch) + self.no_slope(blocks)
        alpha, merged = self.alpha(blocks), self.merge(blocks, self.alpha(blocks))
        for layer, weights in alpha.items():
            factor = steps_of_one_net(weights)
            merged |= {k: scale_gradient(merged[k], factor) for k in self.layers[layer].names}
        return batch.loss(self.net(merged, batch.x)) + self.no_slope(blocks)

    def phases(self) -> list[Phase]:  # the client's lines 19 and 20
        return [self.learn_alpha(), self.learn_branches()]

    def learn_alpha(self) -> Phase:  # line 19: alpha <- alpha - eta_alpha df/dalpha, with W fixed
        project = on_simplex if self.alpha_param == "projection" else None
        step = self.step("alpha", lr=self.alpha_lr, optimizer=SGD(), project=project)
        return Phase((step,), self.epochs if self.alpha_epochs is None else self.alpha_epochs)

    def learn_branches(self) -> Phase:  # line 20: W <- W - eta_W df/dW, with alpha fixed
        others = [name for name in ("rest", "decayed") if name in self.blocks()]
        return Phase((self.step(*self.layers, *others, loss=self.branch_loss),), self.epochs)

    # the server's line 10: by n_i alpha_i
    def writes(self, blocks: Blocks, client: Client) -> dict[str, Tensor]:
        alpha = self.alpha(blocks) if self.sends_alpha else {}
        return {layer: client.size * without_negligible(a) for layer, a in alpha.items()}

    def adaptation(self) -> list[Phase]:
        return {"alpha+W": self.phases(), "W": [self.learn_branches()], "none": []}[self.finetune]

    # whatever is fine-tuned, a new client has to find its branches
    def joining(self) -> list[Phase]:
        return [self.learn_alpha()] if self.finetune == "none" else self.phases()
