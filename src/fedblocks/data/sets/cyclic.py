"""ModFL's clients: groups of neighbouring labels, every label held by as many groups,
sample counts alike.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from fedblocks.core.errors import DataError
from fedblocks.core.random import generator
from fedblocks.data.arrays import Inputs, as_inputs, as_targets
from fedblocks.data.federation import Federation
from fedblocks.data.partition import rows_of_classes
from fedblocks.data.rows import Ints, Rows


def label_groups(labels: int, per_group: int) -> list[list[int]]:
    """Group j holds the labels j, j + 1, ..., going round; if each would hold all of
    them, there is one group.
    """
    if not 1 <= per_group <= labels:
        raise DataError(f"{per_group} labels per group", f"choose from 1 to {labels}")
    groups = labels if per_group < labels else 1
    return [[(j + k) % labels for k in range(per_group)] for j in range(groups)]


def cyclic(
    train: tuple[Inputs, Inputs],
    test: tuple[Inputs, Inputs],
    clients: int,
    per_group: int,
    seed: int = 0,
) -> Federation:
    """One data set over clients in label groups (Liang et al., 2022); the tag `operation` is a
    client's group.

    Each label's rows are divided without overlap among the clients that hold it, equally; the rest
    is dropped.
    """
    x = [as_inputs(pair[0]) for pair in (train, test)]
    y = [as_targets(pair[1]) for pair in (train, test)]
    labels = int(max(own.max() for own in y)) + 1
    groups = label_groups(labels, per_group)
    if clients < 1 or clients % len(groups):
        raise DataError(
            f"{clients} clients for {len(groups)} groups", f"use a multiple of {len(groups)}"
        )
    group = np.repeat(np.arange(len(groups)), clients // len(groups))  # [clients]
    held = np.zeros((clients, labels), dtype=bool)
    for client, own in enumerate(group.tolist()):
        held[client, groups[own]] = True
    parts = [deal_equally(own.numpy(), held, seed, name) for own, name in zip(y, ("train", "test"))]
    test_rows = parts[1].renumber(parts[1].index + len(y[0]))
    about = {
        "partition": {
            "partition": "cyclic",
            "clients": clients,
            "per_group": per_group,
            "seed": seed,
        }
    }
    none = Rows.none(clients)
    tags = {"operation": group}
    return Federation(
        torch.cat(x), torch.cat(y), parts[0], none, test_rows, labels, tags=tags, about=about
    ).check()


def deal_equally(y: Ints, held: np.ndarray, seed: int, name: str) -> Rows:
    """Every holder of a label gets as many of its rows as every other."""
    rows = rows_of_classes(y, generator(seed, "cyclic", name))
    own: list[list[Ints]] = [[] for _ in held]
    for label, holders in enumerate(held.T):
        labelled = rows[label] if label < len(rows) else np.zeros(0, np.int64)
        share = len(labelled) // int(holders.sum())
        if not share:
            message = f"{len(labelled)} {name} rows of label {label} for {holders.sum()} clients"
            raise DataError(message, "use fewer clients, or more rows of each label")
        for place, client in enumerate(np.flatnonzero(holders).tolist()):
            own[client].append(labelled[place * share : (place + 1) * share])
    return Rows.of([np.concatenate(pieces) for pieces in own])


def side_by_side(federations: Mapping[str, Federation]) -> Federation:
    """Clients of several data sets in one federation; the tag `configuration` is the number of the
    data set.

    Inputs of smaller shape are padded with zeros at the end of each axis; `about["shapes"]` says
    their own shapes.
    """
    if not federations:
        raise DataError("there are no federations", "give at least one")
    parts = [own.compact() if own.streamed else own for own in federations.values()]
    dims, classes = {own.x.dim() for own in parts}, {own.classes for own in parts}
    if len(dims) > 1 or len(classes) > 1 or len({tuple(sorted(own.tags)) for own in parts}) > 1:
        raise DataError(
            "the data sets do not have inputs, classes and tags of one kind",
            "join data sets of one task",
        )
    shape = [max(sizes) for sizes in zip(*(own.x.shape[1:] for own in parts))]
    begins = np.cumsum([0, *(len(own.x) for own in parts)]).tolist()
    rows = {
        part: Rows.of([index + at for own, at in zip(parts, begins) for index in own.parts[part]])
        for part in ("train", "validation", "test")
    }
    tags = {tag: np.concatenate([own.tags[tag] for own in parts]) for tag in parts[0].tags}
    tags["configuration"] = np.repeat(np.arange(len(parts)), [own.clients for own in parts])
    return Federation(
        x=torch.cat([pad_to(own.x, shape) for own in parts]),
        y=torch.cat([own.y for own in parts]),
        train=rows["train"],
        validation=rows["validation"],
        test=rows["test"],
        classes=parts[0].classes,
        task=parts[0].task,
        names=[f"{name}/{client}" for name, own in federations.items() for client in own.names],
        tags=tags,
        about={
            "shapes": {name: list(own.x.shape[1:]) for name, own in federations.items()},
            "data_sets": {name: own.about for name, own in federations.items()},
        },
    ).check()


def pad_to(x: Tensor, shape: list[int]) -> Tensor:
    """Inputs [rows, ...] in the first corner of a larger shape."""
    if list(x.shape[1:]) == shape:
        return x
    large = x.new_zeros(len(x), *shape)
    large[(slice(None), *(slice(size) for size in x.shape[1:]))] = x
    return large
