"""The arithmetic of pFedMB's branches: the simplex, small weights, and the change that all branches have in common."""

from __future__ import annotations

import torch
from torch import Tensor

from fedblocks.core.parts import Blocks, Params


def on_simplex(blocks: Blocks) -> Blocks:
    """Every row projected on the simplex: the nearest weights that are not negative and add up to 1."""
    return {name: {k: projected(v) for k, v in block.items()} for name, block in blocks.items()}


def projected(rows: Tensor) -> Tensor:
    """max(0, v - t) with the t that makes it add up to 1: the largest of (sum of the k largest - 1) / k."""
    sums = rows.sort(-1, descending=True).values.cumsum(-1)
    counts = torch.arange(1, rows.shape[-1] + 1, dtype=rows.dtype, device=rows.device)
    threshold = ((sums - 1) / counts).amax(-1, keepdim=True)
    return (rows - threshold).clamp(min=0)


def without_small(weights: Tensor, least: float) -> Tensor:
    """The weights [branches] of at least this much, scaled to add up to 1; the largest always stays."""
    if least == 0:
        return weights
    kept = torch.where((weights >= least) | (weights >= weights.amax()), weights, 0)
    return kept / kept.sum()


def common_change(after: Params, before: Params, alpha: Tensor, kept: Tensor) -> Params:
    """D of a layer whose branches moved as W_b <- s W_b + alpha_b D, from all of them by least squares."""
    share = alpha / alpha.square().sum()  # [branches]
    return {k: torch.tensordot(share, after[k] - kept * before[k], 1) for k in after}


def grown(before: Params, changes: Params, alpha: Tensor, kept: Tensor, weights: Tensor) -> Params:
    """W_b <- sum_i w_ib (s_i W_b + alpha_ib D_i) / sum_i w_ib; a branch that nobody writes stays as it is.

    before: [branches, ...], changes: [clients, ...], alpha and weights: [clients, branches], kept: [clients, 1].
    """
    total = weights.sum(0)
    share = weights / torch.where(total > 0, total, 1)  # [clients, branches]
    stays = torch.where(total > 0, (share * kept).sum(0), 1)  # [branches]
    found: Params = {}
    for name, old in before.items():
        moved = torch.einsum("cb,c...->b...", share * alpha, changes[name].double())
        found[name] = (stays.view(-1, *[1] * (old.dim() - 1)) * old.double() + moved).to(old.dtype)
    return found
