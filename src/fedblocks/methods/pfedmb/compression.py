"""pFedMB's compressed upload: one change a layer instead of all its branches, and exact.

The gradients of a layer's branches are alpha_b times one gradient, and SGD (with momentum and
weight decay) is linear. So training moves all branches as W_b <- s W_b + alpha_b D. A client
uploads D and s, and alpha as the weights of its upload.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from fedblocks.core.blocks import Block, Fresh, Shared
from fedblocks.core.client import Client
from fedblocks.core.optimizers import SGD
from fedblocks.core.parts import Blocks, Params, Value
from fedblocks.core.server import Cohort
from fedblocks.core.uploads import Uploads
from fedblocks.methods.pfedmb.options import BranchOptions


@dataclass(frozen=True, eq=False)
class CompressedUpload(BranchOptions):
    """What pFedMB does for `compressed_upload`, and nothing without it."""

    def alpha(self, blocks: Blocks) -> dict[str, Tensor]:
        raise NotImplementedError

    @property
    def sends_alpha(self) -> bool:
        """Whether branches are written by n x alpha; without alpha, the server cannot
        read a change.
        """
        return self.averaging == "alpha" or self.compressed_upload

    @property
    def has_decay(self) -> bool:
        """With weight decay, s is not 1."""
        return isinstance(self.optimizer, SGD) and self.optimizer.weight_decay > 0

    def upload_of(self, layer: str) -> str | None:
        """The name of the block that is uploaded in the place of a layer's branches."""
        return change_of(layer) if self.compressed_upload else None

    def change_blocks(self) -> dict[str, Block]:
        """A place for D of each layer; s is what weight decay leaves of a 1 that trains
        with the branches.
        """
        if not self.compressed_upload:
            return {}
        changes: dict[str, Block] = {change_of(layer): Fresh() for layer in self.layers}
        if not self.has_decay:
            return changes
        one = Value(torch.ones(1, dtype=self.net.dtype))
        return {**changes, "decay": Shared(one, of="decayed"), "decayed": Fresh(one)}

    def no_slope(self, blocks: Blocks) -> Tensor | float:
        """0 for a loss, so that the 1 has a gradient, which is 0: what has none does not decay."""
        return 0.0 * blocks["decayed"]["value"].sum() if "decayed" in blocks else 0.0

    def finish(self, blocks: Blocks, start: Blocks, client: Client) -> Blocks:
        if not self.compressed_upload:
            return blocks
        no_decay = {"value": torch.ones_like(client.size)[None]}
        decay = blocks.get("decayed", no_decay)["value"]  # s, [1]
        alpha = self.alpha(blocks)
        return blocks | {
            change_of(n): common_change(blocks[n], start[n], alpha[n], decay) for n in self.layers
        }

    def single_uploads(self, before: Blocks, cohort: Cohort) -> Collection[str]:
        decay = ("decay",) if self.has_decay else ()
        return (*self.layers, *decay) if self.compressed_upload else ()

    def conclude(self, server: Blocks, before: Blocks, uploads: Uploads, cohort: Cohort) -> Blocks:
        if not self.compressed_upload or not len(cohort):
            return server
        sizes = cohort.sizes[:, None]  # [clients, 1]
        decay = torch.ones_like(sizes)  # [clients, 1]
        if self.has_decay:
            decay = uploads["decay"].copies["value"]
        rebuilt: Blocks = {}
        for layer in self.layers:
            upload = uploads[layer]
            alpha = upload.weights / sizes.clamp(min=1)  # [clients, branches]
            weights = upload.weights if self.averaging == "alpha" else sizes.expand_as(alpha)
            rebuilt[layer] = average_branches(before[layer], upload.copies, alpha, decay, weights)
        return {**server, **rebuilt}


def change_of(layer: str) -> str:
    """The name of the block that holds D of a layer."""
    return f"change of {layer}"


def common_change(after: Params, before: Params, alpha: Tensor, decay: Tensor) -> Params:
    """D of a layer whose branches moved as W_b <- s W_b + alpha_b D, from all of them
    by least squares.
    """
    share = alpha / alpha.square().sum()  # [branches]
    return {k: torch.tensordot(share, after[k] - decay * before[k], 1) for k in after}


def average_branches(
    before: Params, changes: Params, alpha: Tensor, decay: Tensor, weights: Tensor
) -> Params:
    """W_b <- sum_i w_ib (s_i W_b + alpha_ib D_i) / sum_i w_ib; a branch that nobody writes stays as
    it is.

    before: [branches, ...], changes: [clients, ...], alpha and weights: [clients, branches], decay:
    [clients, 1].
    """
    total = weights.sum(0)  # [branches]
    share = weights / torch.where(total > 0, total, 1)  # [clients, branches]
    stays = torch.where(total > 0, (share * decay).sum(0), 1)  # [branches]
    after: Params = {}
    for name, old in before.items():
        moved = torch.einsum("cb,c...->b...", share * alpha, changes[name].double())
        after[name] = (stays.view(-1, *[1] * (old.dim() - 1)) * old + moved).to(old.dtype)
    return after
