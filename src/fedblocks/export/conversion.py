"""Inputs for a trained model, from arrays as people have them, taken as the data were that it was
trained on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from fedblocks.core.errors import DataError
from fedblocks.core.fields import Fields
from fedblocks.data.arrays import FieldInputs, Inputs, as_inputs, as_rows, from_numpy
from fedblocks.data.federation import Federation
from fedblocks.export.card import Card

_ABOVE_WHOLE = 2.0**63  # no int64 is as large


@dataclass(frozen=True)
class InputForm:
    """What a model takes for one example."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    fields: Fields | None  # None: one tensor

    @staticmethod
    def of(data: Federation) -> InputForm:
        """That of a federation's examples."""
        return InputForm(tuple(data.x.shape[1:]), data.input_type, data.fields)

    @staticmethod
    def of_card(card: Card) -> InputForm:
        """That of an exported model."""
        fields = Fields.from_table(card.fields) if card.fields else None
        return InputForm(tuple(card.input_shape), getattr(torch, card.input_type), fields)

    def take(self, x: Inputs | FieldInputs, where: str) -> Tensor:
        """Arrays of some examples as the net is given them: [inputs, ...]; `where` they are from,
        for messages.
        """
        if isinstance(x, Mapping | tuple):
            return self.convert(self.pack(x), where)
        tensor = x if isinstance(x, Tensor) else from_numpy(np.asarray(x), where)
        if tensor.dim() and not len(tensor):
            raise DataError(f"{where} has no rows", "give at least one input")
        if tensor.dim() == 0 or tensor.shape[1:] != self.shape:
            wanted = ", ".join(["inputs", *map(str, self.shape)])
            message = f"{where} has shape {list(tensor.shape)}; the model takes [{wanted}]"
            one = tuple(tensor.shape) == self.shape
            raise DataError(message, "for one input give x[None]" if one else "reshape it")
        if tensor.is_floating_point() and not torch.isfinite(tensor.sum()):
            bad = ~torch.isfinite(tensor.reshape(len(tensor), -1)).all(1)
            if bad.any():
                row = int(bad.nonzero()[0])
                message = f"{where} is not finite (NaN or infinite) in row {row}"
                raise DataError(message, "remove those inputs")
        return self.convert(tensor, where)

    def pack(self, x: FieldInputs) -> Tensor:
        """Several fields as one row of numbers, in the order of training."""
        if self.fields is None:
            fix = f"give one array, [inputs, {', '.join(map(str, self.shape))}]"
            raise DataError("several fields are given, and the model takes one", fix)
        named: Any = x
        if isinstance(x, Mapping):
            if missing := [name for name in self.fields.labels if name not in x]:
                has = ", ".join(map(str, x))
                raise DataError(f'there is no field "{missing[0]}" but {has}', "give it, too")
            named = {name: x[name] for name in self.fields.labels}
        arrays = list(named.values() if isinstance(named, Mapping) else named)
        rows, there = as_rows(named, len(arrays[0]))
        if there is None or there.shapes != self.fields.shapes:
            shapes = [list(np.shape(array)[1:]) for array in arrays]
            wanted = {n: list(s) for n, s in zip(self.fields.labels, self.fields.shapes)}
            raise DataError(f"the fields have shapes {shapes}", f"the model takes {wanted}")
        return rows

    def convert(self, values: Tensor, where: str) -> Tensor:
        """Numbers of the right shape in the right type: bytes are 0 to 1, as in training, but for
        whole numbers, which must not lose a fraction.
        """
        if not self.dtype.is_floating_point:
            _check_whole(values, "the inputs", where)
            return values.detach().to(self.dtype)
        if _is_other_kind(values.dtype) and self.fields is None:
            kind = str(values.dtype).removeprefix("torch.")
            message = (
                f"{where} holds whole numbers ({kind}), and the model was trained on fractions"
            )
            fix = "scale them as the training data were, and give x.astype('float32'); bytes "
            raise DataError(message, f"{fix}(uint8) are divided by 255")
        # float64 may hold numbers that are too large, which is refused
        narrowed = values.dtype == torch.float64 and self.dtype == torch.float32
        is_changed = narrowed or values.dtype == torch.uint8
        plain = as_inputs(values) if is_changed else values.detach()
        if self.fields is not None:
            columns = torch.split(plain.reshape(len(plain), -1), self.fields.sizes, -1)
            for label, own, whole in zip(self.fields.labels, columns, self.fields.whole):
                if whole:
                    _check_whole(own, label, where)
        return plain.to(self.dtype)


def is_bytes(x: object) -> bool:
    """Whether an array or a tensor holds bytes, which become 0 to 1."""
    return str(getattr(x, "dtype", "")).endswith("uint8")


def refuse_bytes(where: str, trained_on: str) -> NoReturn:
    """For a model that was trained on other numbers than 0 to 1."""
    message = f"{where} holds bytes (uint8), which are divided by 255, and {trained_on}"
    raise DataError(message, "give x.astype('float32'), scaled as the training data were")


def _is_other_kind(dtype: torch.dtype) -> bool:
    """Whole numbers that are no bytes: in training they would have been tokens."""
    return not (dtype.is_floating_point or dtype in (torch.uint8, torch.bool))


def _check_whole(values: Tensor, label: str, where: str) -> None:
    """Refuse fractions where a net reads tokens or categories: they would be cut off."""
    if not values.is_floating_point():
        return
    wrong = ~((values == values.trunc()) & (values.abs() < _ABOVE_WHOLE))
    if wrong.any():
        row = int(wrong.reshape(len(values), -1).any(1).nonzero()[0])
        message = f"{where}: {label} must be whole numbers (tokens, categories), and row {row} has"
        raise DataError(f"{message} {values[wrong][0].item():g}", "give whole numbers")
