"""What is learned: the kind of target, the loss, the metrics, and what a prediction is. Data carry
their task, and nets, methods and engines ask it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedblocks.core import mode
from fedblocks.core.errors import UserError, nearest
from fedblocks.core.losses import IGNORE, LOSSES, OF_CLASSES, LabelLoss, summed_losses
from fedblocks.core.metrics import METRICS, CountMetric, Metric
from fedblocks.core.task_checks import check_loss, check_metrics, loss_name
from fedblocks.core.task_kinds import KINDS, TaskKind


@dataclass(frozen=True)
class Task:
    """What is learned. `Task("regression", loss="absolute", metrics=["mae", "r2"])`

    `loss` is a name or a function of outputs and targets that returns a number for each target
    or for each example whose targets are all known. The first of the `metrics`, names or
    `Metric`s, is the main one: leaderboards, the best round and who is worse off follow it.
    Targets that are not known are -100 among classes and NaN among numbers; they are not scored.
    """

    kind: str = "classification"
    loss: str | LabelLoss = ""  # default: the kind's own
    metrics: Sequence[str | Metric | CountMetric] = ()  # default: the kind's own
    class_weights: Sequence[float] = ()  # of each class; of several labels, where they are there
    label_smoothing: float = 0.0  # the share of a label that goes to all classes alike

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UserError(f'kind: there is no task "{self.kind}"', nearest(self.kind, KINDS))
        loss = self.loss or self.facts.losses[0]
        is_list = isinstance(self.metrics, Iterable) and not isinstance(self.metrics, str)
        metrics = tuple(self.metrics) if is_list else (self.metrics,)
        object.__setattr__(self, "loss", loss)
        object.__setattr__(self, "metrics", metrics or self.facts.metrics)
        object.__setattr__(self, "class_weights", tuple(map(float, self.class_weights)))
        check_loss(self)
        check_metrics(self)

    @property
    def facts(self) -> TaskKind:
        return KINDS[self.kind]

    @property
    def of_classes(self) -> bool:
        """Whether targets are numbers of classes."""
        return self.facts.of_classes

    @property
    def main(self) -> Metric | CountMetric:
        """The metric by which methods are compared."""
        return self.all_metrics[0]

    @cached_property
    def all_metrics(self) -> tuple[Metric | CountMetric, ...]:
        return tuple(METRICS[m] if isinstance(m, str) else m for m in self.metrics)

    @property
    def measured(self) -> tuple[Metric, ...]:
        """The metrics that need a client's outputs."""
        return tuple(m for m in self.all_metrics if isinstance(m, Metric))

    @property
    def counts_alone(self) -> bool:
        """Whether accuracy, which needs nothing but what is counted anyway, is all."""
        return self.metrics == ("accuracy",)

    def values(self, counts: Sequence[float]) -> dict[str, float]:
        """Every metric by name, from right labels, scored labels, sum of losses, and what was
        measured.
        """
        right, labels, loss, *measured = counts
        numbers = dict(zip((m.name for m in self.measured), measured, strict=True))
        return {
            m.name: m.of(right, labels, loss) if isinstance(m, CountMetric) else numbers[m.name]
            for m in self.all_metrics
        }

    # of some examples of one client

    def scored(self, y: Tensor) -> Tensor:
        """Which targets count."""
        return y != IGNORE if self.of_classes else ~y.isnan()

    def summed_losses(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """For each example, the sum of its losses and how many targets are scored: both [batch]."""
        if self._is_plain:
            return summed_losses(outputs, y)
        scored = self.scored(y)
        losses = self._label_losses(outputs, torch.where(scored, y, 0))
        counts = scored.to(outputs.dtype)
        if y.dim() == 1:
            return torch.where(scored, losses, 0), counts
        counts = counts.flatten(1).sum(1)
        if losses.dim() == y.dim():
            return torch.where(scored, losses, 0).flatten(1).sum(1), counts
        # one for each example stands for each of its targets, and has to know all of them
        known = scored.flatten(1)
        weights = torch.where(known.any(1) & ~known.all(1), torch.nan, counts)
        return torch.where(known.any(1), losses, 0) * weights, counts

    def example_losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """One loss per example, the mean over its scored targets: [batch]."""
        total, count = self.summed_losses(outputs, y)
        return total / count.clamp(min=1)

    def right_answers(self, outputs: Tensor, y: Tensor) -> Tensor:
        """How many targets of each example are predicted as they are: [batch]; none of numbers, and
        none where an output is NaN.
        """
        if self.of_classes:
            right = (outputs.argmax(-1) == y) & ~outputs.isnan().any(-1)
            return right if y.dim() == 1 else (right & (y != IGNORE)).flatten(1).sum(1)
        if self.kind == "regression":
            return torch.zeros_like(y[:, 0])
        right = ((outputs > 0) == (y > 0.5)) & ~outputs.isnan()
        return (right & self.scored(y)).sum(1)

    def predict(self, outputs: Tensor) -> Tensor:
        """What a model says of some examples: classes, which labels are there (1 or 0), or
        numbers.
        """
        if self.of_classes:
            return outputs.argmax(-1)
        return outputs if self.kind == "regression" else (outputs > 0).long()

    def mix(self, outputs: Tensor, log_shares: Tensor) -> Tensor:
        """One model's outputs out of several, [models, batch, ...]: the mixture of what they say,
        with these shares [models] (FedEM).
        """
        shares = log_shares.view(-1, *[1] * (outputs.dim() - 1))
        if self.of_classes:
            return (torch.log_softmax(outputs, -1) + shares).logsumexp(0)
        if self.kind == "regression":
            return (outputs * shares.exp()).sum(0)
        there = (F.logsigmoid(outputs) + shares).logsumexp(0)
        return there - (F.logsigmoid(-outputs) + shares).logsumexp(0)

    def encode(self, y: Tensor, width: int, dtype: torch.dtype) -> Tensor:
        """Targets as numbers that a layer can read: [..., width]; classes become one-hot."""
        if self.of_classes:
            return (y[..., None] == torch.arange(width, device=y.device)).to(dtype)
        return torch.where(y.isnan(), 0, y).to(dtype)

    def output_shape(self, y: Tensor, classes: int) -> list[int]:
        """The shape of a net's outputs for one example."""
        return [*y.shape[1:], classes] if self.of_classes else [*y.shape[1:]]

    def label_losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """What the loss returns for some examples, targets that are not known taken as 0."""
        return self._label_losses(outputs, torch.where(self.scored(y), y, 0))

    @property
    def _is_plain(self) -> bool:
        return self.loss == "cross_entropy" and not (self.class_weights or self.label_smoothing)

    def _label_losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        if not isinstance(self.loss, str):
            return self.loss(outputs, y)
        if self.loss in OF_CLASSES:
            weights = tuple(self.class_weights)
            return OF_CLASSES[self.loss](outputs, y, weights, self.label_smoothing)
        return LOSSES[self.loss](outputs, y)

    def table(self) -> dict[str, Any]:
        """The task as a configuration records it; functions go by their names."""
        names = [m if isinstance(m, str) else m.name for m in self.metrics]
        table: dict[str, Any] = {"kind": self.kind, "loss": loss_name(self.loss), "metrics": names}
        if self.class_weights:
            table["class_weights"] = list(self.class_weights)
        return table | ({"label_smoothing": self.label_smoothing} if self.label_smoothing else {})

    @staticmethod
    def of(table: Mapping[str, Any]) -> Task:
        """The task that a table describes."""
        return Task(**table)


CLASSIFICATION = Task()  # where data do not say otherwise


def current_task() -> Task:
    """The task of the pass that is running."""
    return mode.current().task or CLASSIFICATION


def as_task(task: Task | str) -> Task:
    """A task, or that of a kind."""
    if isinstance(task, str):
        return Task(task)
    if not isinstance(task, Task):
        raise UserError(
            f"the task is of type {type(task).__name__}", f"give fb.Task({sorted(KINDS)[0]!r})"
        )
    return task
