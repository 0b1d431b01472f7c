"""Gradients of bounded length."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedblocks.core.optimizers import Rate, each_client


def clip_gradients(
    grads: Sequence[Tensor | None], largest: Rate, mapped: bool
) -> list[Tensor | None]:
    """Gradients whose norm together is at most `largest`, as `torch.nn.utils.clip_grad_norm_` has
    it; of a stack, each client's own.
    """
    squares = [  # [] or [clients]
        g.reshape(len(g), -1).square().sum(-1) if mapped else g.square().sum()
        for g in grads
        if g is not None
    ]
    norm = torch.stack(squares).sum(0).sqrt()
    scale = (largest / (norm + 1e-6)).clamp(max=1.0)
    return [None if g is None else g * each_client(scale, g) for g in grads]
