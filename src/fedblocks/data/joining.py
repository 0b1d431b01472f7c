"""Several arrays joined into one pool, with the rows that each client has in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedblocks.core.errors import DataError, count_of
from fedblocks.core.fields import Fields
from fedblocks.core.losses import IGNORE
from fedblocks.core.task import CLASSIFICATION, Task
from fedblocks.data.array_kinds import dims_of, refuse_bytes_beside_others
from fedblocks.data.arrays import (
    PICTURES,
    FieldInputs,
    Inputs,
    about_fields,
    as_rows,
    as_targets,
    has_fields,
    name_targets,
)
from fedblocks.data.dividing import rows_of
from fedblocks.data.field_bytes import about_bytes, bytes_as_they_are
from fedblocks.data.partition import Partition
from fedblocks.data.partitions import alike
from fedblocks.data.rows import Rows

Pair = tuple[Inputs | FieldInputs, Inputs]  # inputs and labels


@dataclass(frozen=True, eq=False)
class Parts:
    """One client's own inputs and labels for each part."""

    train: Pair
    validation: Pair | None = None
    test: Pair | None = None


@dataclass(frozen=True, eq=False)
class Joined:
    """A pool, and the train, validation and test rows of each client in it."""

    x: Tensor
    y: Tensor
    rows: tuple[Rows, Rows, Rows]
    fields: Fields | None  # of an example that has several
    words: Sequence[str] = ()  # that labels were, by their numbers
    kept: Sequence[str] = ()  # fields of bytes that are no pictures, and stay as they are


def join(
    pairs: Sequence[Pair], owners: Sequence[str], task: Task = CLASSIFICATION
) -> tuple[Tensor, Tensor, list[int], Fields | None]:
    """One pool out of many, where each begins, and the fields of an example that has several."""
    y = [as_targets(pair[1], task) for pair in pairs]
    refuse_two_scales([pair[0] for pair in pairs], owners, [len(targets) for targets in y])
    both = [as_rows(pair[0], len(targets)) for pair, targets in zip(pairs, y, strict=True)]
    x, fields = [inputs for inputs, _ in both], both[0][1]
    for owner, inputs, targets in zip(owners, x, y):
        if len(inputs) != len(targets):
            raise DataError(
                f"{owner}: {len(inputs)} inputs, {len(targets)} labels", "give one label per row"
            )
        if (
            inputs.shape[1:] != x[0].shape[1:]
            or inputs.dtype != x[0].dtype
            or targets.shape[1:] != y[0].shape[1:]
        ):
            here = f"{list(inputs.shape[1:])} {inputs.dtype}"
            elsewhere = f"{list(x[0].shape[1:])} {x[0].dtype}"
            message = f"{owner}: rows are {here}, elsewhere {elsewhere}"
            raise DataError(message, "give all clients rows of one shape and type")
    begins = np.cumsum([0, *(len(targets) for targets in y)]).tolist()
    if any(own != fields for _, own in both):
        raise DataError("the fields of the inputs differ", "give all clients the same fields")
    return torch.cat(x), torch.cat(y), begins, fields


def refuse_two_scales(
    inputs: Sequence[Inputs | FieldInputs], owners: Sequence[str], rows: Sequence[int]
) -> None:
    """Refuse inputs, and fields of them, that are bytes in one place and other numbers in
    another.
    """
    arrays: dict[str, list[tuple[str, Any]]] = {}  # those of each field
    for x, owner, count in zip(inputs, owners, rows, strict=True):
        if not has_fields(x, count):
            arrays.setdefault("", []).append((owner, x))
            continue
        fields: Any = x.items() if isinstance(x, Mapping) else enumerate(x)  # type: ignore[arg-type]
        for name, values in fields:
            if dims_of(values) >= PICTURES:  # other bytes are whole numbers, and not scaled
                own = arrays.setdefault(f'field "{name}"', [])
                own.append((f'{owner}, field "{name}",', values))
    for named in arrays.values():
        refuse_bytes_beside_others(named)


def name_pairs(
    pairs: Sequence[Pair], owners: Sequence[str], task: Task = CLASSIFICATION
) -> tuple[list[Pair], list[str]]:
    """Labels that are words, numbered in the order of the alphabet for all alike, and the words;
    others as they are.
    """
    named = [name_targets(y, task) for _, y in pairs]
    words = sorted({word for _, own in named for word in own})
    if not words:
        return list(pairs), []
    number = {word: place for place, word in enumerate(words)}
    numbered: list[Pair] = []
    for owner, (x, _), (places, own) in zip(owners, pairs, named, strict=True):
        unknown = np.asarray(places) == IGNORE
        if not own and not unknown.all():
            raise DataError(
                f"{owner}: labels are numbers, elsewhere words such as {words[0]!r}",
                "give all clients words, or all of them whole numbers",
            )
        renumbered = np.array([number[word] for word in own] or [IGNORE], np.int64)
        at = np.where(unknown, 0, places).astype(np.int64)
        numbered.append((x, np.where(unknown, IGNORE, renumbered[at])))
    return numbered, words


def join_parts(
    clients: Sequence[Parts], names: Sequence[str], task: Task = CLASSIFICATION
) -> Joined:
    """Clients that bring their own arrays, one after the other."""
    if not clients:
        raise DataError("there are no clients", "give at least one")
    if len(names) != len(clients):
        counts = f"{count_of(len(names), 'name')} for {count_of(len(clients), 'client')}"
        raise DataError(counts, "give one name for each client, or none")
    parts = [part.name for part in fields(Parts)]
    brought = [
        (part, c)
        for part in parts
        for c, own in enumerate(clients)
        if getattr(own, part) is not None
    ]
    owners = [f"{names[c]} ({part})" for part, c in brought]
    pairs, words = name_pairs([getattr(clients[c], part) for part, c in brought], owners, task)
    x, y, begins, of_example = join(pairs, owners, task)
    stretch = {key: np.arange(a, b) for key, a, b in zip(brought, begins, begins[1:])}
    nothing = np.zeros(0, np.int64)
    train, validation, test = (
        Rows.of([stretch.get((p, c), nothing) for c in range(len(clients))]) for p in parts
    )
    return Joined(x, y, (train, validation, test), of_example, words, _kept_bytes(pairs))


def name_pools(train: Pair, validation: Pair | None, test: Pair) -> tuple[list[Pair], list[str]]:
    """Two or three pools whose labels are numbers, and the words that they were."""
    pools = [train, test] if validation is None else [train, validation, test]
    return name_pairs(pools, _names_of(pools))


def join_pools(
    partition: Partition, pools: Sequence[Pair], seed: int, words: Sequence[str] = ()
) -> Joined:
    """Official pools, for training first and for tests last: the partition divides the first, and
    the others by the same shares of every class.
    """
    x, y, begins, of_example = join(pools, _names_of(pools))
    labels = [y[a:b].numpy() for a, b in pairwise(begins)]
    others = [alike(partition, labels[0], other, seed).rows for other in labels[1:]]
    shifted = [rows.renumber(rows.index + begin) for rows, begin in zip(others, begins[1:])]
    middle = shifted[0] if len(shifted) == 2 else Rows.none(len(partition))
    rows = (partition.rows, middle, shifted[-1])
    return Joined(x, y, rows, of_example, words, _kept_bytes(pools))


def _kept_bytes(pairs: Sequence[Pair]) -> list[str]:
    """Fields that somebody brings as bytes, and that are no pictures."""
    named = [bytes_as_they_are(x, rows_of(y)) for x, y in pairs]
    return list(dict.fromkeys(name for own in named for name in own))


def _names_of(pools: Sequence[Pair]) -> list[str]:
    middle = ["validation pool"] if len(pools) == 3 else []
    return ["train pool", *middle, "test pool"]


def about_joined(joined: Joined) -> dict[str, Any]:
    """What a federation's `about` says of the fields and the words of its rows."""
    words = {"class_names": list(joined.words)} if joined.words else {}
    return {**about_fields(joined.fields), **about_bytes(list(joined.kept)), **words}
