"""Whether loss and metrics fit the kind of a task, before anything is trained."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from fedblocks.core.errors import UserError, a_kind, nearest
from fedblocks.core.losses import LOSSES, OF_CLASSES, LabelLoss
from fedblocks.core.metrics import METRICS, CountMetric, Metric
from fedblocks.core.own_code import own_name, takes
from fedblocks.core.task_kinds import KINDS

if TYPE_CHECKING:
    from fedblocks.core.task import Task


def loss_name(loss: str | LabelLoss) -> str:
    """A loss as it is recorded and called in messages."""
    return loss if isinstance(loss, str) else getattr(loss, "__qualname__", type(loss).__name__)


def check_loss(task: Task) -> None:
    """Refuse a loss that is none, or not for the task, and options that it does not have."""
    loss, facts = task.loss, task.facts
    function = LOSSES.get(loss) if isinstance(loss, str) else loss
    if function is not None and not (callable(function) and takes(function, 2)):
        what = own_name(function) if callable(function) else a_kind(function)
        raise UserError(
            f"loss: {what} is no function of two", "write def loss(outputs, targets): ..."
        )
    if isinstance(loss, str):
        if loss not in LOSSES:
            raise UserError(f'loss: there is no loss "{loss}"', nearest(loss, LOSSES))
        others = {name for kind in KINDS.values() for name in kind.losses} - {*facts.losses}
        if loss in others:
            fix = f"choose from {', '.join(facts.losses)}, or give a function"
            raise UserError(f'loss: "{loss}" is not for {task.kind}', fix)
    weighted = bool(task.class_weights) or task.label_smoothing != 0
    if weighted and loss not in OF_CLASSES:
        raise UserError(
            "class_weights and label_smoothing are for cross-entropies, not for "
            f'"{loss_name(loss)}"',
            "leave them out, or write them into the loss",
        )
    if not 0 <= task.label_smoothing < 1:
        raise UserError(
            f"label_smoothing: {task.label_smoothing} is not a share", "use 0 or more, below 1"
        )
    if any(not (math.isfinite(weight) and weight >= 0) for weight in task.class_weights):
        raise UserError("class_weights: a weight is negative or no number", "use 0 or more")


def check_metrics(task: Task) -> None:
    """Refuse metrics that are none, or not for the task, or have a name in common."""
    usual = {*task.facts.metrics, *task.facts.other_metrics, "loss"}
    of_kinds = {name for k in KINDS.values() for name in (*k.metrics, *k.other_metrics)}
    names = []
    for metric in task.metrics:
        _check_metric(metric)
        name = metric if isinstance(metric, str) else metric.name
        if isinstance(metric, str) and metric not in METRICS:
            raise UserError(f'metrics: there is no metric "{metric}"', nearest(metric, METRICS))
        if isinstance(metric, str) and metric in of_kinds - usual:
            fix = f"choose from {', '.join(sorted(usual))}, or give a Metric of your own"
            raise UserError(f'metrics: "{metric}" is not for {task.kind}', fix)
        names.append(name)
    if len({*names}) < len(names):
        raise UserError(f"metrics: {', '.join(names)} has a name twice", "name each once")


def _check_metric(metric: Any) -> None:
    """Refuse what is no metric, and a name that stands for none."""
    known = METRICS.get(metric, "") if isinstance(metric, str) else metric
    if isinstance(known, str | Metric | CountMetric):
        return
    what = f"the function {own_name(known)}" if callable(known) else a_kind(known)
    where = f'METRICS["{metric}"]' if isinstance(metric, str) else "metrics"
    function = own_name(known).rpartition(".")[2] if callable(known) else "function"
    name, function = ("name", "function") if "<" in function else (function, function)
    fix = f'write fb.Metric("{name}", {function}), with better="lower" where less is better'
    raise UserError(f"{where}: {what} is not a metric", fix)
