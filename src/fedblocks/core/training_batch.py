"""The examples of a training step, as tensors on the device."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from fedblocks.core.augmentations import augment_batch
from fedblocks.core.client import ClientStack, Step


def batch_of(local: ClientStack, step: Step, key: Tensor) -> dict[str, Tensor]:
    """The tensors of `Batch`, for one client or for a stack of them; `key` is the step's."""
    source, tensors = local.source, local.tensors
    rows, size = tensors["rows"], tensors["size"]
    if step.full:
        index = step.index
        mask = size.new_ones(index.shape)
    else:
        index = step.index.clamp(min=0)
        mask = (step.index >= 0).to(size.dtype)
    where = _pick(rows, index) if index.dim() == 1 else rows.gather(-1, index)
    x, y = _pick(source.x, where), _pick(source.y, where)
    augment = None if local.method is None else local.method.augment
    if augment:
        with torch.no_grad():
            x = local.each(partial(augment_batch, augment))(x, key)
    return {"x": x, "y": y, "mask": mask, "index": index, "key": key}


def _pick(values: Tensor, where: Tensor) -> Tensor:
    """Some rows; for one client by a kernel that copies whole rows, several times as
    fast on a CPU.
    """
    return values.index_select(0, where) if where.dim() == 1 else values[where]
