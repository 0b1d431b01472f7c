"""The loss and the metrics of a task, somebody's own above all, tried on a few real examples before
the first round: a long run must not end at its first evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from itertools import count
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor

from fedblocks.core.errors import DataError, UserError, a_kind, count_of
from fedblocks.core.losses import LOSSES
from fedblocks.core.metrics import METRICS
from fedblocks.core.net import Net
from fedblocks.core.own_code import own_code, own_name
from fedblocks.core.task import Task
from fedblocks.core.task_checks import loss_name
from fedblocks.data import Federation
from fedblocks.data.targets import has_known_targets, lost_digits, refuse_partly_known
from fedblocks.engines.net_check.kept_state import changed_state, state_around
from fedblocks.engines.scoring import score_outputs
from fedblocks.runs.batches import targets_of
from fedblocks.runs.loss_company import couples

LOSSES_OF_OURS = "fedblocks.core.losses"
EXAMPLES = 8
NUMBERS = 2_000_000  # that all outputs may have together


class TaskTrial(NamedTuple):
    """What an untrained net makes of some examples of one client."""

    outputs: Tensor  # [examples, ...]
    y: Tensor
    client: str  # whose they are; empty: the data are elsewhere, and these are stand-ins


def try_task(net: Net, federation: Federation, sizes: Collection[int]) -> list[str]:
    """Refuse a loss or a metric that does not do what it should; what to know of the others.
    `sizes` are those of the run's batches.
    """
    if federation.train.sizes.any() and not has_known_targets(federation, "train"):
        raise DataError(
            "no training row has a target that is known: all are NaN, or left out",
            "give targets: a row without any is allowed, but not all rows",
        )
    trial = _take_examples(net, federation)
    loss = federation.task.loss
    before = {} if isinstance(loss, str) else state_around(loss)
    _try_loss(federation.task, trial)
    _try_sizes(federation, trial, sizes)
    kept = "" if isinstance(loss, str) else changed_state(before, state_around(loss))
    refuse_partly_known(federation)
    notes = lost_digits(federation.y, net.dtype)
    if kept:
        notes.append(
            f'the loss "{loss_name(loss)}" changes {kept} when it is called: what depends on it '
            "is not as in plain PyTorch, for a run calls it more often, or repeats its steps "
            "without it"
        )
    return notes + _try_metrics(federation.task, trial) if trial.client else notes


def _take_examples(net: Net, federation: Federation) -> TaskTrial:
    numbers = math.prod(federation.task.output_shape(federation.y, federation.classes))
    most = max(2, min(EXAMPLES, NUMBERS // max(1, numbers)))
    largest = int(federation.train.sizes.argmax())
    rows = list(federation.train[largest][:most])
    client = federation.names[largest] if rows else ""
    rows = rows or list(range(min(2, len(federation.x))))
    y = federation.y[torch.as_tensor(rows, device=federation.y.device)].cpu()
    y = y if federation.task.of_classes else y.to(net.dtype)  # as in training
    with torch.no_grad():
        return TaskTrial(net(net.init(0), federation.inputs(rows).cpu()), y, client)


def _try_loss(task: Task, trial: TaskTrial) -> None:
    # not as many examples as outputs or steps, so that one is not taken for the other
    sizes = {*trial.outputs.shape[1:], *trial.y.shape[1:]}
    many = next(number for number in count(len(trial.y) + 1) if number not in sizes)
    turns = torch.arange(many) % len(trial.y)
    outputs, y = trial.outputs[turns].requires_grad_(), trial.y[turns]
    name = task.loss if isinstance(task.loss, str) else own_name(task.loss)
    fix = f"return one number for each example, [{many}]"
    with torch.enable_grad(), own_code(f'the loss "{name}"', "correct it"):
        losses = task.label_losses(outputs, y)
    if not isinstance(losses, Tensor) or list(losses.shape) not in ([many], list(y.shape)):
        of = f"{many} examples with targets {list(y.shape)}"
        has = f"has shape {list(losses.shape)}" if isinstance(losses, Tensor) else "is no tensor"
        message = f'the loss "{name}" of {of} {has}'
        message += "" if isinstance(losses, Tensor) else f" but {a_kind(losses)}"
        raise UserError(message, f"{fix}, or {list(y.shape)}")
    if not losses.requires_grad:
        message = f'the loss "{name}" does not depend on the outputs, so that nothing is learned'
        raise UserError(message, "compute it from the outputs by tensor functions, not detached")
    if trial.client and not _counted(task, losses, y).isfinite().all():
        message = f'the loss "{name}" is no finite number for examples of client "{trial.client}"'
        raise UserError(f"{message} and an untrained net", "correct the loss, or the targets")
    if _depends_on_others(task, outputs.detach(), y):
        _refuse_others(name, many)


def _try_sizes(federation: Federation, trial: TaskTrial, sizes: Collection[int]) -> None:
    """Refuse a loss that couples examples in some batches: in large ones, or if one stands out."""
    task, most = federation.task, max(sizes)
    if isinstance(task.loss, str) and LOSSES[task.loss].__module__ == LOSSES_OF_OURS:
        return  # tests ask those of the library
    y = targets_of(federation, int(federation.train.sizes.argmax()), most)
    y = y if task.of_classes else y.to(trial.outputs.dtype)
    with torch.no_grad():
        if couples(task, trial.outputs, y, sizes):
            _refuse_others(loss_name(task.loss), most)


def _refuse_others(name: str, many: int) -> NoReturn:
    message = f'the loss "{name}" of an example is another when other examples are beside it'
    fix = f"return one number for each example, [{many}]"
    raise UserError(message, f"{fix}, each from its own outputs and targets alone")


def _depends_on_others(task: Task, outputs: Tensor, y: Tensor) -> bool:
    """Whether an example's loss is another alone, beyond rounding, be it by ever so little."""
    in_double = (outputs.double(), y.double() if y.is_floating_point() else y)
    try:
        return _differs(task, *in_double, tolerance=1e-9)
    except Exception:  # it has numbers of its own, in single precision
        return _differs(task, outputs, y, tolerance=1e-5)


def _differs(task: Task, outputs: Tensor, y: Tensor, tolerance: float) -> bool:
    losses, alone = task.label_losses(outputs, y), task.label_losses(outputs[:1], y[:1])
    size = float(losses.nan_to_num(0, 0, 0).abs().max())
    return not torch.allclose(losses[:1], alone, rtol=0, atol=tolerance * size, equal_nan=True)


def _counted(task: Task, losses: Tensor, y: Tensor) -> Tensor:
    """The losses of known targets."""
    scored = task.scored(y)
    return losses[scored if losses.dim() == y.dim() else scored.flatten(1).any(1)]


def _try_metrics(task: Task, trial: TaskTrial) -> list[str]:
    """What to know of metrics that are undefined for examples which have known targets."""
    if not task.scored(trial.y).any():
        return []
    values = task.values(score_outputs(task, trial.outputs, trial.y))
    own = [metric.name for metric in task.measured if METRICS.get(metric.name) is not metric]
    where = f'{count_of(len(trial.y), "example")} of client "{trial.client}" and an untrained net'
    return [
        f'the metric "{name}" is NaN, that is undefined, for {where}: clients for whom it is are '
        "left out of its means"
        for name in own
        if math.isnan(values[name])
    ]
