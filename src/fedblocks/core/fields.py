"""Several inputs of one example, such as tokens and their mask: side by side in one row of numbers
where data are stored, sliced and padded, and apart again where a module is called.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from fedblocks.core.errors import DataError, NetError, a_kind

LARGEST = 2**24  # the largest whole number up to which float32 holds all
KEYWORDS, PLACES, WHOLE = "keywords", "places", "whole"  # how a module takes several inputs


@dataclass(frozen=True)
class Fields:
    """Names, shapes and types of the inputs of one example, in the order of their columns."""

    shapes: tuple[tuple[int, ...], ...]  # of one example
    whole: tuple[bool, ...]  # whole numbers (tokens, masks), int64; else float32
    names: tuple[str, ...] | None = None  # None: a tuple, by place

    @staticmethod
    def of(inputs: Mapping[str, Tensor] | Sequence[Tensor]) -> Fields:
        """Those of some rows: name -> [rows, ...], or a tuple of such."""
        names = tuple(inputs) if isinstance(inputs, Mapping) else None
        tensors = list(inputs.values() if isinstance(inputs, Mapping) else inputs)
        if not tensors:
            raise DataError("the inputs have no field", "give at least one array")
        shapes = tuple(tuple(tensor.shape[1:]) for tensor in tensors)
        return Fields(shapes, tuple(not t.is_floating_point() for t in tensors), names)

    @staticmethod
    def from_table(table: Mapping[str, Any]) -> Fields:
        """From what `table` wrote."""
        shapes = tuple(tuple(int(size) for size in shape) for shape in table["shapes"])
        names = table.get("names")
        whole = tuple(bool(one) for one in table["whole"])
        return Fields(shapes, whole, None if names is None else tuple(map(str, names)))

    def table(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "shapes": [list(shape) for shape in self.shapes],
            "whole": list(self.whole),
            "names": None if self.names is None else list(self.names),
        }

    @property
    def sizes(self) -> list[int]:
        """The columns of each field."""
        return [prod(shape) for shape in self.shapes]

    @property
    def dtype(self) -> torch.dtype:
        """Of a row: whole numbers where all fields are."""
        return torch.int64 if all(self.whole) else torch.float32

    @property
    def labels(self) -> tuple[str, ...]:
        """What messages call them."""
        return self.names or tuple(f"input {place}" for place in range(len(self.shapes)))

    def pack(self, inputs: Mapping[str, Tensor] | Sequence[Tensor]) -> Tensor:
        """One row of numbers for each example: [rows, columns]; whole numbers alone stay whole."""
        tensors = list(inputs.values() if isinstance(inputs, Mapping) else inputs)
        kind = self.dtype
        rows = len(tensors[0])
        for label, tensor, is_whole in zip(self.labels, tensors, self.whole, strict=True):
            if len(tensor) != rows:
                message = f"{self.labels[0]} has {rows} rows and {label} has {len(tensor)}"
                raise DataError(message, "give every field a row for each example")
            if is_whole and kind == torch.float32 and bool((tensor.abs() > LARGEST).any()):
                message = f"{label} has whole numbers above {LARGEST} beside numbers with fractions"
                raise DataError(message, "number what they stand for from 0")
        return torch.cat([tensor.reshape(rows, -1).to(kind) for tensor in tensors], 1)

    def unpack(self, x: Tensor) -> list[Tensor]:
        """The fields of some rows: [batch, columns] -> [batch, ...] each."""
        pieces = torch.split(x, self.sizes, -1)
        shaped = [p.reshape(*p.shape[:-1], *s) for p, s in zip(pieces, self.shapes, strict=True)]
        return [p.long() if is_whole else p for p, is_whole in zip(shaped, self.whole, strict=True)]


@dataclass(frozen=True)
class FieldCall:
    """A hook before a module's forward pass: gives it the fields of a row as it takes them."""

    fields: Fields
    how: str

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        pieces = self.fields.unpack(args[0])
        named = dict(zip(self.fields.labels, pieces, strict=True))
        if self.how == KEYWORDS:
            return (), named
        if self.how == PLACES:
            return tuple(pieces), {}
        return (named if self.fields.names else tuple(pieces),), {}


def columns_of(inputs: Any) -> int:
    """How many numbers an example is; refuses what does not say the inputs of one."""
    if not isinstance(inputs, Fields):
        raise NetError(
            f"inputs= is {a_kind(inputs)}, not the fields of an example",
            "write Net.of(..., inputs=data.fields), for data whose examples have several inputs: "
            'Federation.from_users({"tokens": ..., "mask": ...}, y, users)',
        )
    return sum(inputs.sizes)


def make_with_fields(make: Callable[[], nn.Module], fields: Fields) -> nn.Module:
    """A module that takes rows of numbers, and whose own forward pass is given their fields."""
    module = make()
    hook = FieldCall(fields, _how_to_call(module, fields))
    module.register_forward_pre_hook(hook, with_kwargs=True)
    return module


def fields_of(module: nn.Module) -> Fields | None:
    """The fields of the rows that a module takes; None: its input is one tensor."""
    hooks = [hook for hook in module._forward_pre_hooks.values() if isinstance(hook, FieldCall)]
    return hooks[0].fields if hooks else None


def _how_to_call(module: nn.Module, fields: Fields) -> str:
    """By keyword where parameters have the names of the fields; by place where there are as many
    as fields; one that is needed is given all, as a dictionary or tuple.
    """
    parameters = list(inspect.signature(module.forward).parameters.values())
    named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    if fields.names and set(fields.names) <= named:
        _check_complete(parameters, fields)
        return KEYWORDS
    in_place = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = sum(1 for p in in_place if p.default is p.empty)
    count = len(fields.shapes)
    if needed == count:
        return PLACES
    if any(p.kind == p.VAR_KEYWORD for p in parameters) and fields.names:
        return KEYWORDS
    if any(p.kind == p.VAR_POSITIONAL for p in parameters) and needed <= count:
        return PLACES
    if needed == 1:
        return WHOLE
    takes = ", ".join(p.name for p in parameters)
    raise NetError(
        f"the module takes ({takes}), and the inputs are {', '.join(fields.labels)}",
        "give the inputs the names of its parameters",
    )


def _check_complete(parameters: Sequence[inspect.Parameter], fields: Fields) -> None:
    """Refuse inputs that lack one of those that the module needs."""
    extra = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in extra]
    missing = [name for name in needed if name not in fields.labels]
    if missing:
        raise NetError(
            f"the module takes ({', '.join(needed)}), and the inputs are "
            f"{', '.join(fields.labels)}",
            f"give the data a field {missing[0]} too, or the parameter {missing[0]} a default",
        )
