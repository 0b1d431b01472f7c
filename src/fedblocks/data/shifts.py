"""Shifts between groups of clients, on inputs p(x), on labels p(y), on what labels mean
p(y|x), and on all at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import factorial
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import torch

from fedblocks.core.errors import DataError
from fedblocks.core.options import AnyNumber, AtMost, Help, Positive
from fedblocks.core.random import generator
from fedblocks.core.task import CLASSIFICATION, Task, as_task
from fedblocks.data.arrays import Inputs, as_targets
from fedblocks.data.federation import Federation
from fedblocks.data.images import rotate_images
from fedblocks.data.options import checked
from fedblocks.data.partitions import grouped_labels
from fedblocks.data.rows import Floats, Ints, renumber_parts
from fedblocks.data.subsets import replace_rows
from fedblocks.data.summary import IGNORE

Groups = int | npt.ArrayLike  # how many hidden groups, or the group of each client
Degrees = Annotated[
    Sequence[float], AnyNumber(), Help("the angle of each group; default: evenly around the circle")
]
Hidden = Annotated[Groups, AnyNumber(), Help("how many hidden groups, or the group of each client")]
Keep = Annotated[
    float, Positive(), AtMost(1), Help("share of the classes that each group keeps", usual="0.5")
]
Tag = Annotated[str, Help("the tag that says a client's group")]
_INPUTS_ALONE = "use rotate, which changes the inputs alone"


def hidden_groups(clients: int, groups: Groups, seed: int = 0) -> Ints:
    """The group of each client: as given, or drawn so that groups are of equal size or
    differ by one.
    """
    values = np.asarray(groups, dtype=object)
    if not all(isinstance(value, int | np.integer) for value in values.flat):
        raise DataError(
            f"groups = {groups!r} are not whole numbers",
            "say how many groups, or one group per client",
        )
    numbers = values.astype(np.int64)
    if numbers.ndim:
        if numbers.shape != (clients,) or numbers.min(initial=0) < 0:
            raise DataError(
                f"groups of shape {list(numbers.shape)} for {clients} clients",
                "give one group per client",
            )
        return numbers
    if not 0 < numbers <= clients:
        raise DataError(
            f"{numbers} groups of {clients} clients", "use 1 to as many groups as clients"
        )
    return generator(seed, "hidden_groups").permutation(np.arange(clients) % numbers)


def own_rows(federation: Federation, groups: Ints) -> tuple[Federation, Ints]:
    """A federation whose rows each belong to one group, rows shared between groups
    copied; and each row's group.
    """
    old = federation.parts
    pool = len(federation.x)
    keys = np.concatenate([groups[rows.owners] * pool + rows.index for rows in old.values()])
    used, parts = renumber_parts(old, keys)  # one row per (group, old row)
    rows: dict[str, Any] = dict(parts)
    return replace_rows(federation, used % pool, rows), used // pool


def mark(federation: Federation, groups: Ints, tag: str, shift: dict[str, Any]) -> Federation:
    """Record the groups as a tag, and the shift in the recipe."""
    shifts = [*federation.about.get("shifts", []), {**shift, "tag": tag}]
    return replace(
        federation,
        tags={**federation.tags, tag: groups},
        about={**federation.about, "shifts": shifts},
    )


def rotate(
    federation: Federation,
    groups: Hidden,
    degrees: Degrees = (),
    seed: int = 0,
    tag: Tag = "group",
) -> Federation:
    """Turn the images of each group counter-clockwise by its own angle; by default
    evenly around the circle.
    """
    members = hidden_groups(federation.clients, groups, seed)
    kinds = int(members.max()) + 1
    angles = [float(angle) for angle in degrees] or [
        360.0 * group / kinds for group in range(kinds)
    ]
    if len(angles) < kinds:
        raise DataError(f"{len(angles)} angles for {kinds} groups", "give one angle per group")
    owned, group = own_rows(federation, members)
    x = owned.x
    for which, angle in enumerate(angles[:kinds]):
        rows = torch.from_numpy(group == which).to(x.device)
        x[rows] = rotate_images(x[rows], angle)
    return mark(replace(owned, x=x), members, tag, {"shift": "rotate", "degrees": angles[:kinds]})


def permutations(groups: int, classes: int, seed: int = 0) -> Ints:
    """A different order of the classes for each group; the first group keeps its labels."""
    if classes < 12 and groups > factorial(classes):
        raise DataError(
            f"{groups} groups, but {classes} labels have {factorial(classes)} orders",
            "use fewer groups",
        )
    orders: dict[bytes, Ints] = {}
    rng = generator(seed, "permutations")
    order = np.arange(classes)
    while len(orders) < groups:
        orders.setdefault(order.tobytes(), order)
        order = rng.permutation(classes)
    return np.stack(list(orders.values()))  # [groups, classes]


def _need_classes(task: Task, shift: str, others: str) -> None:
    """Refuse a shift of classes for targets that are numbers or several labels."""
    if not task.of_classes:
        message = f"{shift} changes classes, and the targets of {task.kind} are none"
        raise DataError(message, others)


def permute_labels(
    federation: Federation,
    groups: Hidden,
    seed: int = 0,
    tag: Tag = "group",
) -> Federation:
    """Rename the classes of each group by its own permutation: the same input means
    another label.
    """
    _need_classes(federation.task, "permute_labels", f"{_INPUTS_ALONE}, or change y by yourself")
    members = hidden_groups(federation.clients, groups, seed)
    orders = permutations(int(members.max()) + 1, federation.classes, seed)
    owned, group = own_rows(federation, members)
    y = owned.y.cpu().numpy()
    scored = y >= 0
    row_group = np.broadcast_to(group.reshape(-1, *[1] * (y.ndim - 1)), y.shape)
    y[scored] = orders[row_group[scored], y[scored]]
    shifted = replace(owned, y=torch.from_numpy(y).to(owned.y.device))
    return mark(shifted, members, tag, {"shift": "permute_labels", "seed": seed})


@checked
def class_weights(groups: int, classes: int, keep: Keep = 0.5, seed: int = 0) -> Floats:
    """1 for the classes that a group keeps, else 0; the groups' choices overlap as
    little as possible.
    """
    kept = max(1, round(keep * classes))
    order = generator(seed, "class_weights").permutation(classes)
    weights = np.zeros((groups, classes))
    for group in range(groups):
        begin = round(group * classes / groups)  # windows around a circle of shuffled classes
        weights[group, order[np.arange(begin, begin + kept) % classes]] = 1
    return weights


def skew_labels(
    federation: Federation,
    groups: Hidden,
    keep: Keep = 0.5,
    weights: Annotated[
        npt.ArrayLike | None,
        Help("[groups, classes]: share of rows that is kept, instead of `keep`"),
    ] = None,
    seed: int = 0,
    tag: Tag = "group",
) -> Federation:
    """Drop rows so that each group has label frequencies of its own; all parts of a
    client are treated alike.
    """
    _need_classes(federation.task, "skew_labels", f"{_INPUTS_ALONE}, or choose rows by yourself")
    members = hidden_groups(federation.clients, groups, seed)
    kinds = int(members.max()) + 1
    if weights is None:
        table = class_weights(kinds, federation.classes, keep, seed)  # [groups, classes]
    else:
        table = np.asarray(weights, np.float64)
    if table.shape != (kinds, federation.classes) or not ((table >= 0) & (table <= 1)).all():
        raise DataError(
            f"weights of shape {list(table.shape)}",
            f"give [{kinds}, {federation.classes}] shares in 0..1",
        )
    labels = federation.y.cpu().numpy()
    if labels.ndim != 1:
        raise DataError(
            "label skew needs one label per row", "skew sequences with a partition by user or topic"
        )
    if (labels < 0).any():
        row = int(np.flatnonzero(labels < 0)[0])
        message = f"label skew needs the label of every row, and that of row {row} is not known"
        raise DataError(f"{message} ({IGNORE})", "leave such rows out before")
    rng = generator(seed, "skew_labels")
    rows: dict[str, Any] = {
        part: old.where(rng.random(len(old.index)) < table[members[old.owners], labels[old.index]])
        for part, old in federation.parts.items()
    }
    recipe = {"shift": "skew_labels", "weights": table.tolist(), "seed": seed}
    return mark(replace(federation, **rows), members, tag, recipe).check()


def joint(
    federation: Federation,
    groups: Hidden,
    seed: int = 0,
    degrees: Degrees = (),
    keep: Keep = 0.5,
    tag: Tag = "group",
) -> Federation:
    """All three shifts by the same hidden groups: each has its own labels, angle and
    meaning of labels.
    """
    _need_classes(federation.task, "joint", _INPUTS_ALONE)
    members = hidden_groups(federation.clients, groups, seed)
    skewed = skew_labels(federation, members, keep, seed=seed, tag=tag)
    return permute_labels(rotate(skewed, members, degrees, tag=tag), members, seed, tag)


def joint_pool(
    x: Inputs,
    y: Inputs,
    clients: int,
    groups: Groups,
    *,
    alpha: float = 0.5,  # label skew between groups: smaller is stronger
    degrees: Sequence[float] = (),
    seed: int = 0,
    min_size: int = 10,
    **options: Any,
) -> Federation:
    """The joint shift straight from a pool: label skew divides the rows and drops none;
    options as for from_arrays.
    """
    _need_classes(as_task(options.get("task", CLASSIFICATION)), "joint_pool", _INPUTS_ALONE)
    members = hidden_groups(clients, groups, seed)
    partition = grouped_labels(as_targets(y), members, alpha, seed, min_size)
    federation = Federation.from_arrays(x, y, partition, seed=seed, **options)
    return permute_labels(rotate(federation, members, degrees), members, seed)


SHIFTS: dict[str, Callable[..., Federation]] = {
    "rotate": rotate,
    "permute_labels": permute_labels,
    "skew_labels": skew_labels,
    "joint": joint,
}
