"""Map-style data sets of torch, whose items are pairs or dictionaries, as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from fedblocks.core.errors import DataError, nearest
from fedblocks.data.array_kinds import refuse_bytes_beside_others
from fedblocks.data.arrays import PICTURES, FieldInputs, Inputs


class MapDataset(Protocol):
    """Anything with a length that gives items by number, as torch's data sets do."""

    def __len__(self) -> int: ...
    def __getitem__(self, row: int, /) -> Any: ...


class Stacked(NamedTuple):
    """All items of a data set."""

    x: Tensor | FieldInputs
    y: Inputs
    users: Any  # [rows], or None where items do not say whose they are


def stack_dataset(dataset: MapDataset, label: str, user: str) -> Stacked:
    """Every item of a data set, stacked: (input, label), where the input may be a tuple or a
    dictionary of several; or one dictionary, in which `label` names the target.
    """
    if not len(dataset):
        raise DataError("the data set is empty", "give one with at least one row")
    try:
        items = [_read_item(dataset[row], label, user) for row in range(len(dataset))]
        inputs, targets, users = zip(*items, strict=True)
        return Stacked(_stack_inputs(inputs), _stack_targets(targets), _stack_users(users))
    except DataError:
        raise
    except (TypeError, ValueError, RuntimeError, KeyError) as error:
        fix = "each item must be (input, label) of one shape; add a transform to tensors"
        raise DataError(f"the data set cannot be stacked: {error}", fix) from error


def _read_item(item: Any, label: str, user: str) -> tuple[Any, Any, Any]:
    """Input, label, and whose it is."""
    if not isinstance(item, Mapping):
        x, y = item
        return x, y, None
    if label not in item:
        raise DataError(
            f'the items of the data set have no field "{label}"', nearest(label, map(str, item))
        )
    others = {str(name): value for name, value in item.items() if name not in (label, user)}
    only = len(others) == 1
    return next(iter(others.values())) if only else others, item[label], item.get(user)


def _stack_inputs(inputs: Sequence[Any]) -> Tensor | FieldInputs:
    first = inputs[0]
    if isinstance(first, Mapping):
        words = next((name for name, value in first.items() if isinstance(value, str)), None)
        if words is not None:
            fix = "turn them into numbers; user= and label= name the fields of users and labels"
            raise DataError(f'the field "{words}" of the data set holds words', fix)
        return {str(name): _stack_field([one[name] for one in inputs], name) for name in first}
    if isinstance(first, tuple):
        fields = enumerate(zip(*inputs, strict=True))
        return tuple(_stack_field(values, f"input {place}") for place, values in fields)
    refuse_bytes_beside_others((f"item {at}", values) for at, values in enumerate(inputs))
    return _stack(inputs)


def _stack_field(values: Sequence[Any], name: str) -> Tensor:
    stacked = _stack(values)
    if stacked.dim() >= PICTURES:
        refuse_bytes_beside_others((f"{name} of item {at}", one) for at, one in enumerate(values))
    return stacked


def _stack_targets(targets: Sequence[Any]) -> Inputs:
    return list(targets) if isinstance(targets[0], str) else _stack(targets)


def _stack_users(users: Sequence[Any]) -> Any:
    if users[0] is None:
        return None
    return [one.item() if isinstance(one, Tensor) else one for one in users]


def _stack(values: Sequence[Any]) -> Tensor:
    return torch.stack([torch.as_tensor(value) for value in values])
