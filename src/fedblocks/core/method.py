"""The contract: a method is a frozen record of options with pure functions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from torch import Tensor

from fedblocks.core.augmentations import Augmentation
from fedblocks.core.blocks import Block, Private, Read
from fedblocks.core.checks import Checked
from fedblocks.core.description import Described
from fedblocks.core.joined import join as join  # part of the contract
from fedblocks.core.net import Net
from fedblocks.core.optimizers import SGD, Optimizer
from fedblocks.core.options import AtLeast, Help, Positive
from fedblocks.core.parts import Blocks, is_statistic
from fedblocks.core.phases import Batch, Loss, Phase, Pull, Rests, Update
from fedblocks.core.schedules import Schedule, is_open

if TYPE_CHECKING:
    from fedblocks.core.client import Client
    from fedblocks.core.server import Cohort
    from fedblocks.core.uploads import Uploads

View = Callable[[Blocks, Tensor], Tensor]  # (blocks, inputs) -> logits


@dataclass(frozen=True, eq=False)
class Method(Described, Checked):
    """Everything that makes one method differ from another. Loop, devices, data, logging:
    elsewhere.

    `blocks`, `predict` and `phases` are all that a method must say. A round calls, in this order:
    `reads` on the server; `wants`, `prepare`, the phases, `finish` and `writes` on each client;
    `conclude` on the server.
    """

    tags: ClassVar[tuple[str, ...]] = ()  # what the data must say of every client, e.g. its cohort
    # groups with other blocks on the server conclude one after another, each from its own clients
    concludes_apart: ClassVar[bool] = False
    without_tags: ClassVar[str] = ""  # what to do where they do not say it
    # parts that every client with training data must have, e.g. "validation"
    needs: ClassVar[tuple[str, ...]] = ()
    # options that came after results were stored, each with the value that changes nothing
    later_options: ClassVar[Mapping[str, Any]] = {}

    net: Net
    lr: Annotated[
        float | Schedule, Positive(), Help("local learning rate", usual="0.01 to 0.5")
    ] = 0.1
    epochs: Annotated[int, AtLeast(1), Help("local epochs", usual="1 to 5")] = 1
    batch_size: Annotated[int, AtLeast(1), Help("examples in a batch", usual="10 to 64")] = 32
    optimizer: Annotated[Optimizer, Help("the local optimizer")] = field(default_factory=SGD)
    keep_optimizer: Annotated[
        bool, Help("clients keep their momenta between rounds instead of starting anew")
    ] = False
    drop_last: Annotated[
        bool, Help("leave out an epoch's last batch if it is not full and not the only one")
    ] = False
    clip_norm: Annotated[
        float | None,
        Positive(),
        Help("largest norm of a step's gradient; longer ones are shortened", usual="1 to 10"),
    ] = None
    augment: Annotated[
        tuple[Augmentation, ...] | None,
        Help(
            "changes to the inputs of training steps, in turn: crop, flip, jitter, noise, scale",
            usual="[Crop(4), Flip()]",
        ),
    ] = None
    statistics: Annotated[
        Literal["average", "local", "refuse"],
        Help(
            'running statistics of BatchNorm: "average", "local" (stay on the client) or "refuse"'
        ),
    ] = "average"

    # every method says

    def blocks(self) -> dict[str, Block]:
        """The blocks of a client's model and where each lives."""
        raise NotImplementedError(f"{type(self).__name__} must say its blocks")

    def predict(self, blocks: Blocks, x: Tensor) -> Tensor:
        """The personal model: logits for some inputs."""
        raise NotImplementedError(f"{type(self).__name__} must say how it predicts")

    def phases(self) -> list[Phase]:
        """Local training."""
        raise NotImplementedError(f"{type(self).__name__} must say its phases")

    # on the client, in a round

    def wants(self, blocks: Blocks, client: Client) -> dict[str, Tensor]:
        """For every pool on request, the slots [slots] that the client downloads (not 0 = yes)."""
        return {}

    def prepare(self, blocks: Blocks, client: Client) -> Blocks:
        """Before training: choose, mix, summarise."""
        return blocks

    def finish(self, blocks: Blocks, start: Blocks, client: Client) -> Blocks:
        """After training; `start` is what `prepare` returned."""
        return blocks

    def writes(self, blocks: Blocks, client: Client) -> dict[str, Tensor]:
        """Weights [slots] with which a block is written; default: the number of
        examples, where it was read.
        """
        return {}

    # on the server, in a round

    def reads(self, server: Blocks, cohort: Cohort) -> dict[str, Read]:
        """What each client is sent, where it is not simply the block's slots."""
        return {}

    def conclude(self, server: Blocks, before: Blocks, uploads: Uploads, cohort: Cohort) -> Blocks:
        """After all slots are averaged: the server's blocks at the end of the round."""
        return server

    def single_uploads(self, before: Blocks, cohort: Cohort) -> Collection[str]:
        """The blocks of which `conclude` looks at single copies in this round, beside weights and
        averages. Where a run is spread over processes, these are brought together.
        """
        quiet = type(self).conclude is Method.conclude
        return () if quiet else list(self.blocks())

    # before an evaluation

    def views(self) -> dict[str, View]:
        """The models that are evaluated; "personal" always is."""
        return {"personal": self.predict}

    def adaptation(self) -> list[Phase]:
        """What a client does on its training data before it is evaluated; nothing of it is kept."""
        return []

    def joining(self) -> list[Phase]:
        """What a client that never took part does to get its model; nothing of it is uploaded.

        Where models have no part of a client's own, a new client is like any other; else it trains
        once, for itself.
        """
        return self.adaptation() or (self.phases() if self.has_personal_state else [])

    # helpers for methods

    def loss(self, blocks: Blocks, batch: Batch) -> Tensor:
        """The loss of the personal model."""
        return batch.loss(self.predict(blocks, batch.x))

    def step(
        self,
        *train: str,
        loss: Loss | None = None,
        lr: float | Schedule | None = None,
        pull: Pull | None = None,
        repeat: int = 1,
        project: Callable[[Blocks], Blocks] | None = None,
        optimizer: Optimizer | None = None,
        rests: Rests | None = None,
    ) -> Update:
        """An update of some blocks with the method's own loss, learning rate and optimizer."""
        rate = self.lr if lr is None else lr
        how = optimizer or self.optimizer
        return Update(
            train, loss or self.loss, rate, how, pull, repeat, project, self.clip_norm, rests
        )

    def options(self) -> dict[str, Any]:
        """The options by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "net"}

    @property
    def open_schedules(self) -> dict[str, Any]:
        """The options that are schedules over the run's rounds and do not know their number yet."""
        return {name: value for name, value in self.options().items() if is_open(value)}

    def over(self, rounds: int) -> Self:
        """The same method in a run of so many rounds: schedules over the run's own rounds end
        with it.
        """
        schedules = {name: value.over(rounds) for name, value in self.open_schedules.items()}
        return replace(self, **schedules) if schedules else self

    @property
    def has_personal_state(self) -> bool:
        """Whether a part of the model stays with its client: private blocks, or
        statistics of its own.
        """
        own_statistics = self.statistics == "local" and any(map(is_statistic, self.net.names))
        return own_statistics or any(isinstance(block, Private) for block in self.blocks().values())

    @property
    def stateful(self) -> bool:
        """Whether a client keeps anything between rounds: a part of its model, or what
        its optimizer remembers.
        """
        return self.has_personal_state or self.keep_optimizer
