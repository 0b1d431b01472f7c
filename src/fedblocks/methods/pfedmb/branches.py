"""The arithmetic of a client's branch weights: the simplex, and weights too small to keep."""

from __future__ import annotations

import torch
from torch import Tensor

from fedblocks.core.parts import Blocks

NEGLIGIBLE = 1e-12  # a branch that is weighted less is not written


def on_simplex(blocks: Blocks) -> Blocks:
    """Every row projected on the simplex: the nearest weights that are not negative and
    add up to 1.
    """
    return {name: {k: project(v) for k, v in block.items()} for name, block in blocks.items()}


def project(rows: Tensor) -> Tensor:
    """max(0, v - t) with the t that makes it add up to 1: the largest of
    (sum of the k largest - 1) / k.
    """
    sums = rows.sort(-1, descending=True).values.cumsum(-1)
    counts = torch.arange(1, rows.shape[-1] + 1, dtype=rows.dtype, device=rows.device)
    threshold = ((sums - 1) / counts).amax(-1, keepdim=True)
    return (rows - threshold).clamp(min=0)


def without_small(weights: Tensor, least: float | Tensor) -> Tensor:
    """The weights [branches] of at least this much, scaled to add up to 1; the largest
    always stays.
    """
    if not isinstance(least, Tensor) and least == 0:
        return weights
    kept = torch.where((weights >= least) | (weights >= weights.amax()), weights, 0)
    return kept / kept.sum()


def without_negligible(weights: Tensor) -> Tensor:
    """The weights [branches], exactly 0 where a branch is as good as unused."""
    return torch.where(weights > NEGLIGIBLE, weights, 0)
