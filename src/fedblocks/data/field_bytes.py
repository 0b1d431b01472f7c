"""Fields of bytes that stay whole numbers, as masks and tokens do; bytes of pictures become
0..1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from fedblocks.data.array_kinds import dims_of, kind_of
from fedblocks.data.arrays import PICTURES, FieldInputs, Inputs, has_fields

if TYPE_CHECKING:
    from fedblocks.data.federation import Federation

BYTES = "bytes"  # where a federation's `about` has the fields that hold bytes as they are


def bytes_as_they_are(x: Inputs | FieldInputs, rows: int) -> list[str]:
    """The fields of an example that are bytes and no pictures."""
    if not has_fields(x, rows):
        return []
    named: Any = x.items() if isinstance(x, Mapping) else enumerate(x)  # type: ignore[arg-type]
    return [
        str(name) if isinstance(x, Mapping) else f"input {name}"
        for name, values in named
        if kind_of(values) == "uint8" and dims_of(values) < PICTURES
    ]


def about_bytes(fields: list[str]) -> dict[str, Any]:
    """What a federation's `about` says of them."""
    return {BYTES: fields} if fields else {}


def remarks_on_bytes(federation: Federation) -> list[str]:
    """Fields of bytes that would be 0..1 by themselves or as pictures; masks of 0 and 1 are meant
    as they are.
    """
    fields, named = federation.fields, federation.about.get(BYTES, [])
    if fields is None or not named or not len(federation.x):
        return []
    columns = dict(zip(fields.labels, torch.split(federation.x, fields.sizes, -1), strict=True))
    kept = {name: columns[name] for name in named if name in columns and columns[name].numel()}
    return [
        f'field "{name}" holds bytes as they are, {int(own.min())} to {int(own.max())}: '
        "give fractions (x / 255) if a net is to read 0 to 1"
        for name, own in kept.items()
        if own.max() > 1
    ]
