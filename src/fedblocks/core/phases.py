"""Local training as data: phases, each a list of updates that run in turn on every batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from fedblocks.core import mode
from fedblocks.core.optimizers import SGD, Optimizer
from fedblocks.core.parts import Blocks
from fedblocks.core.schedules import Schedule

if TYPE_CHECKING:
    from fedblocks.core.client import Client

IGNORE = -100  # a label that is not scored: padding in sequences


@dataclass(frozen=True, eq=False)
class Batch:
    """Some examples of one client; rows whose mask is 0 are padding and must not count."""

    x: Tensor  # [batch, ...]
    y: Tensor  # [batch] or [batch, steps]
    mask: Tensor  # [batch], 1 = real
    index: Tensor  # [batch], position among the client's training examples
    key: Tensor  # [], the source of noise in this step
    client: Client  # whose examples they are

    def mean(self, values: Tensor) -> Tensor:
        """The mean of one number per example over the real examples."""
        return (values * self.mask).sum() / self.mask.sum().clamp(min=1)

    def loss(self, logits: Tensor) -> Tensor:
        """Cross-entropy, averaged over the real examples (over their scored tokens for
        sequences).
        """
        total, count = summed_losses(logits, self.y)
        return (total * self.mask).sum() / (count * self.mask).sum().clamp(min=1)


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


def example_losses(logits: Tensor, y: Tensor) -> Tensor:
    """One loss per example, for sequences the mean over its scored tokens: [batch]."""
    total, count = summed_losses(logits, y)
    return total / count.clamp(min=1)


Loss = Callable[[Blocks, Batch], Tensor]


@dataclass(frozen=True)
class Pull:
    """strength/2 |block - to|^2: `to` as it was when training began, or as it is now (`live`)."""

    block: str
    to: str
    strength: float
    live: bool = False


@dataclass(frozen=True)
class Update:
    """One gradient step on one batch; only the named blocks move."""

    train: tuple[str, ...]
    loss: Loss | None  # None: the pull alone
    lr: float | Schedule
    optimizer: Optimizer = SGD()  # noqa: RUF009 - frozen
    pull: Pull | None = None
    repeat: int = 1
    # maps the trained blocks back to where they must be
    project: Callable[[Blocks], Blocks] | None = None

    def __post_init__(self) -> None:
        if self.loss is None and self.pull is None:
            raise ValueError("an update needs a loss or a pull")


@dataclass(frozen=True)
class Phase:
    """A stretch of local training."""

    updates: tuple[Update, ...]
    epochs: int = 1
    # "all", "support" (the first half of a client's examples), "query" (the other half)
    on: str = "all"
    steps: int | None = None  # this many batches instead of whole epochs
    # new values for the trained blocks, before the first step
    begin: Callable[[Blocks], Blocks] | None = None

    @property
    def train(self) -> tuple[str, ...]:
        """The blocks that move, each once."""
        return tuple(dict.fromkeys(name for update in self.updates for name in update.train))
