"""What a refusal says of tokens and categories, where a number outside its table cannot raise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from fedblocks.core.admission import Refusal
from fedblocks.core.forward_errors import IN_RANGE, ranges_of
from fedblocks.data.federation import Federation

_NAN = "a number outside the embedding that reads it is NaN on a GPU"


def with_inputs(refusals: Sequence[Refusal], data: Federation) -> list[Refusal]:
    """Refusals of numbers that are not finite also say what whole numbers the client's inputs are,
    on a GPU: there one that is in no table has led to NaN (`layers.embedding`).
    """
    if not _cannot_raise(data.device):
        return list(refusals)
    return [_with_inputs(one, data) if one.reason == "not-finite" else one for one in refusals]


def _with_inputs(refusal: Refusal, data: Federation) -> Refusal:
    ranges = ranges_of(data.inputs(data.train[refusal.client]), data.fields)
    if not ranges:
        return refusal
    detail = f"{refusal.detail}; its inputs are {ranges}, and {_NAN}: {IN_RANGE}"
    return replace(refusal, detail=detail)


def _cannot_raise(device: torch.device) -> bool:
    return device.type == "cuda"
