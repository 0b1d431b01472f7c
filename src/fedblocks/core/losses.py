"""Losses by name: each a function of a net's outputs and the targets, one number per label."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from fedblocks.core import mode

IGNORE = -100  # a label that is not scored: padding in sequences

# outputs and targets of some examples -> one loss per target, or one per example: [batch]
LabelLoss = Callable[[Tensor, Tensor], Tensor]


def summed_losses(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """For each example, the sum of its cross-entropies and how many labels were scored:
    both [batch].
    """
    scored = (y != IGNORE).to(logits.dtype)
    # classes last: other orders take a slow kernel
    flat = logits.flatten(0, -2) if y.dim() > 1 else logits
    losses = _cross_entropy(flat, y.flatten())
    if y.dim() == 1:
        return losses, scored
    return losses.view(len(y), -1).sum(1), scored.flatten(1).sum(1)


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """[examples], 0 where a label is not scored."""
    if not mode.current().mapped:
        return F.cross_entropy(logits, labels, reduction="none", ignore_index=IGNORE)
    # the same as vmap makes of that, without the seconds that torch takes to import its rules
    scored = labels != IGNORE
    chances = F.log_softmax(logits, -1).gather(-1, torch.where(scored, labels, 0)[:, None])
    return torch.where(scored, -chances.squeeze(-1), 0)


def cross_entropy(
    logits: Tensor, y: Tensor, weights: tuple[float, ...] = (), smoothing: float = 0.0
) -> Tensor:
    """Of each label, as torch defines it with weights of classes and smoothed labels."""
    log_shares = F.log_softmax(logits, -1)  # [..., classes]
    of_class = _constant(weights or (1.0,) * logits.shape[-1], logits.dtype, logits.device)
    own = -log_shares.gather(-1, y[..., None])[..., 0] * of_class[y]
    spread = -(log_shares * of_class).sum(-1) / logits.shape[-1]
    return (1 - smoothing) * own + smoothing * spread


def binary_cross_entropy(
    logits: Tensor, y: Tensor, weights: tuple[float, ...] = (), smoothing: float = 0.0
) -> Tensor:
    """Of each label that may be there or not; `weights` are those of labels that are there."""
    of_label = _constant(weights or (1.0,) * logits.shape[-1], logits.dtype, logits.device)
    wanted = y.to(logits.dtype) * (1 - smoothing) + smoothing / 2
    there, not_there = F.logsigmoid(logits), F.logsigmoid(-logits)
    return -(of_label * wanted * there + (1 - wanted) * not_there)


def squared(outputs: Tensor, y: Tensor) -> Tensor:
    """The squared error of each number."""
    return (outputs - y).square()


def absolute(outputs: Tensor, y: Tensor) -> Tensor:
    """The absolute error of each number."""
    return (outputs - y).abs()


def huber(outputs: Tensor, y: Tensor) -> Tensor:
    """Half the squared error up to 1, and beyond that the absolute error less a half."""
    error = (outputs - y).abs()
    return torch.where(error < 1, 0.5 * error.square(), error - 0.5)


@lru_cache(maxsize=64)
def _constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Made once: a step that is recorded as a graph must not copy from the host."""
    return torch.tensor(values, dtype=dtype, device=device)


# those that take weights of classes and smoothed labels
OF_CLASSES = {"cross_entropy": cross_entropy, "binary_cross_entropy": binary_cross_entropy}
# by name, for configurations; a program may add its own
LOSSES: dict[str, LabelLoss] = {
    **OF_CLASSES,
    "squared": squared,
    "absolute": absolute,
    "huber": huber,
}
