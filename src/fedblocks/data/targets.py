"""What a federation's targets are, and whether they fit its task: classes, several labels or
numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedblocks.core.errors import DataError, UserError, count_of
from fedblocks.core.losses import IGNORE
from fedblocks.core.own_code import own_code
from fedblocks.core.task_checks import loss_name
from fedblocks.data.rows import Floats, Rows

if TYPE_CHECKING:
    from fedblocks.data.federation import Federation

_MOST_LOST = 1e-3  # of the standard deviation of targets, that rounding may move one


def describe_targets(federation: Federation) -> str:
    """Such as `10 classes`, `5 labels` or `1 number`."""
    count = federation.classes
    if federation.task.of_classes:
        return f"{count} {'class' if count == 1 else 'classes'}"
    return count_of(count, "number" if federation.task.kind == "regression" else "label")


def gaps_in_labels(federation: Federation) -> str:
    """Classes that no row has, such as 0 where somebody counts from 1; nothing: every class has
    rows, or an example has a label for each of many steps, as words have.
    """
    y = federation.y
    if not federation.task.of_classes or y.dim() > 1 or not len(y):
        return ""
    present = torch.bincount(y[y >= 0].cpu(), minlength=federation.classes)  # [classes]
    missing, there = ((present == 0).nonzero().flatten(), present.nonzero().flatten())
    if not len(missing):
        return ""
    return f"no row has label {_some(missing)} (labels present: {_some(there)})"


def is_one_hot(federation: Federation) -> bool:
    """Whether labels of one class each are written as a row of zeros with a single 1."""
    y, task = federation.y, federation.task
    if not task.of_classes or task.facts.steps or y.dim() != 2 or y.shape[1] < 2:
        return False
    return bool(((y == 0) | (y == 1)).all() and (y.sum(1) == 1).all())


def _some(labels: torch.Tensor, most: int = 5) -> str:
    shown = ", ".join(str(label) for label in labels[:most].tolist())
    return f"{shown}, ..." if len(labels) > most else shown


def check_target_shape(federation: Federation) -> None:
    """Type and shape are those of the task."""
    y, task = federation.y, federation.task
    whole = task.of_classes
    fits = y.dtype == torch.int64 if whole else y.is_floating_point()
    dims = (2,) if task.facts.steps or not whole else (1, 2)
    if fits and y.dim() in dims:
        if not whole and y.shape[1] != federation.classes:
            message = f"{y.shape[1]} targets an example, and {federation.classes} outputs"
            raise DataError(message, "leave `classes` out")
        return
    wanted = "labels are int64, [rows] or [rows, steps]"
    if whole and task.facts.steps:
        wanted = f"labels of {task.kind} are int64, [rows, steps]"
    if not whole:
        wanted = f"targets of {task.kind} are numbers, [rows, outputs]"
    if whole and y.is_floating_point():
        wanted += '; for numbers say task=Task("regression")'
    raise DataError(f"labels are {y.dtype} of shape {list(y.shape)}", wanted)


def odd_targets(federation: Federation) -> tuple[torch.Tensor, str, str]:
    """Which targets no model can learn, what is wrong with such, and what to do."""
    y = federation.y
    if federation.task.kind == "regression":
        fix = "remove or correct these rows; NaN says that a target is not known"
        return y.isinf(), "targets are infinite", fix
    fix = "write 1 for a label that is there, 0 for one that is not, NaN if it is not known"
    return (y != 0) & (y != 1) & ~y.isnan(), "labels are neither 0 nor 1", fix


def remarks_on_targets(federation: Federation) -> list[str]:
    """Targets that are not known are not scored, which is allowed but easily overlooked; in
    sequences they are also what fills them up, and nothing is said.
    """
    y, of_classes = federation.y, federation.task.of_classes
    if of_classes and y.dim() > 1:
        return _read_as_steps(federation)
    missing = int((y == IGNORE).sum() if of_classes else y.isnan().sum())
    verb, mark = "is" if missing == 1 else "are", IGNORE if of_classes else "NaN"
    text = f"{count_of(missing, 'target')} {verb} missing ({mark}) and {verb} not scored"
    return [text] if missing else []


def _read_as_steps(federation: Federation) -> list[str]:
    """What to know of labels [rows, steps] that may be meant as one label for each row."""
    y = federation.y
    if federation.task.facts.steps:
        return []
    is_column, one_hot = y.shape[1] == 1, is_one_hot(federation)
    if not is_column and not one_hot:
        return []
    how = ", each row zeros and a single 1," if one_hot else ""
    size = count_of(y.shape[1], "step")
    fix = "y[:, 0]" if is_column else "y.argmax(1)"
    return [
        f"labels of shape {list(y.shape)}{how} are read as a label for each of {size}: "
        f"give {fix} if a row has one class"
    ]


def refuse_partly_known(federation: Federation) -> None:
    """Refuse a loss of whole examples where a part of an example's targets is not known: it would
    be trained on what stands in their place.
    """
    task, y = federation.task, federation.y
    known = task.scored(y).flatten(1) if y.dim() > 1 else torch.ones(0, 1, dtype=torch.bool)
    partly = int((known.any(1) & ~known.all(1)).sum())
    if not partly:
        return
    shape = task.output_shape(y, federation.classes)
    some = torch.zeros(len(y[:2]), *shape, device=y.device)
    with own_code(f'the loss "{loss_name(task.loss)}"', "correct it"):
        losses = task.label_losses(some, y[:2].to(some.dtype) if not task.of_classes else y[:2])
    if losses.dim() == 1:
        verb = "has" if partly == 1 else "have"
        message = (
            f'the loss "{loss_name(task.loss)}" returns one number for each example, and '
            f"{count_of(partly, 'example')} {verb} targets of which only a part is known"
        )
        wanted = f"[batch, {', '.join(map(str, y.shape[1:]))}]"
        raise UserError(message, f"return one loss for each target, {wanted}")


def lost_digits(y: Tensor, dtype: torch.dtype) -> list[str]:
    """What to know of targets whose differences a net of this type cannot see."""
    if y.dtype != torch.float64 or dtype == torch.float64:
        return []
    for column in y.flatten(1).T:
        known = column[~column.isnan()]
        rounded = known.to(dtype).double()
        if not len(known):
            continue
        error, spread = float((known - rounded).abs().max()), float(known.std(correction=0))
        if error > _MOST_LOST * spread > 0:
            before, after = (len(set(values.tolist())) for values in (known, rounded))
            kind = str(dtype).removeprefix("torch.")
            size = f"by up to {error:.3g} (their standard deviation is {spread:.3g})"
            return [
                f"{before} different targets become {after} in {kind}, which rounds them {size}: "
                "subtract their mean, or use Net.of(..., dtype=torch.float64)"
            ]
    return []


def has_known_targets(federation: Federation, part: str) -> bool:
    """Whether any target of a part of the data can be learned or scored."""
    rows = torch.from_numpy(np.array(federation.parts[part].index, np.int64))
    y = federation.y[rows.to(federation.y.device)]
    return bool(federation.task.scored(y).any())


def spread_of_targets(federation: Federation, rows: Rows) -> dict[str, list[Any]]:
    """Columns of a table of clients: mean and standard deviation of their targets."""
    y = federation.y.cpu().numpy()
    own: list[Floats] = [y[list(held)].astype(np.float64) for held in rows]
    known = [values[~np.isnan(values)] for values in own]
    means = [float(values.mean()) if len(values) else None for values in known]
    spreads = [float(values.std()) if len(values) else None for values in known]
    return {
        "target_mean": [None if v is None else round(v, 4) for v in means],
        "target_std": [None if v is None else round(v, 4) for v in spreads],
    }
