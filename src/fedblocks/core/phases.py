"""Local training as data: phases, each a list of updates that run in turn on every batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from torch import Tensor

from fedblocks.core.errors import NetError
from fedblocks.core.optimizers import SGD, Optimizer
from fedblocks.core.parts import Blocks
from fedblocks.core.schedules import Schedule

if TYPE_CHECKING:
    from fedblocks.core.client import Client
    from fedblocks.core.task import Task


@dataclass(frozen=True, eq=False)
class Batch:
    """Some examples of one client; rows whose mask is 0 are padding and must not count."""

    x: Tensor  # [batch, ...]
    y: Tensor  # [batch], [batch, steps] or [batch, outputs]
    mask: Tensor  # [batch], 1 = real
    index: Tensor  # [batch], position among the client's training examples
    key: Tensor  # [], the source of noise in this step
    client: Client  # whose examples they are

    @property
    def task(self) -> Task:
        """What is learned."""
        return self.client.task

    def mean(self, values: Tensor) -> Tensor:
        """The mean of one number per example over the real examples."""
        return (values * self.mask).sum() / self.mask.sum().clamp(min=1)

    def loss(self, logits: Tensor) -> Tensor:
        """The task's loss, averaged over the targets of the real examples that are scored."""
        total, count = self.task.summed_losses(logits, self.y)
        return (total * self.mask).sum() / (count * self.mask).sum().clamp(min=1)


Loss = Callable[[Blocks, Batch], Tensor]


# (blocks as the phase begins, client) -> block -> whether it rests
Rests = Callable[[Blocks, "Client"], dict[str, Tensor]]


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
    clip_norm: float | None = None  # the largest norm of the gradient, pulls included
    # blocks that are named and rest in this round, [] or [slots] of bool: they are not moved by
    # anything, and what the optimizer keeps of them stays as it is
    rests: Rests | None = None

    def __post_init__(self) -> None:
        if self.loss is None and self.pull is None:
            raise ValueError("an update needs a loss or a pull")


# all of a client's examples, the first half of them, the other half
HALVES = ("all", "support", "query")


@dataclass(frozen=True)
class Phase:
    """A stretch of local training."""

    updates: tuple[Update, ...]
    epochs: int = 1
    # one of HALVES
    on: str = "all"
    steps: int | None = None  # this many batches instead of whole epochs
    # new values for the trained blocks, before the first step
    begin: Callable[[Blocks], Blocks] | None = None

    @property
    def train(self) -> tuple[str, ...]:
        """The blocks that move, each once."""
        return tuple(dict.fromkeys(name for update in self.updates for name in update.train))


def refuse_without_gradient(update: Update) -> NoReturn:
    """A step that can move nothing."""
    names = " and ".join(f'"{name}"' for name in update.train)
    raise NetError(
        f"a step trains {names}, on which its loss does not depend",
        "train blocks that the forward pass uses; the head of a net is named by "
        "Net.of(..., head=...)",
    )
