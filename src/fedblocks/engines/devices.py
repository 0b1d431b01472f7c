"""Devices by name: cpu, cuda, or one of several GPUs by its number, cuda:1."""

from __future__ import annotations

import re

import numpy as np
import torch
from torch import Tensor

from fedblocks.core.errors import UserError

PATTERN = "cpu|cuda(:[0-9]+)?"


def find_device(name: str) -> torch.device:
    """The device of a name, if it is there; kernels and recorded graphs start on the one with a
    number from now on.
    """
    if not re.fullmatch(PATTERN, name):
        raise UserError(f'there is no device "{name}"', "use cpu, cuda, or a GPU such as cuda:1")
    device = torch.device(name)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and count <= (device.index or 0):
        if not count:
            fix = 'use device = "auto" or "cpu", or install a CUDA build of torch'
            raise UserError("torch finds no GPU", fix)
        raise UserError(
            f"there is no {device}: torch finds {count} of them", f"use at most cuda:{count - 1}"
        )
    if device.index is not None:
        torch.cuda.set_device(device)
    return device


def send(values: Tensor, device: torch.device) -> Tensor:
    """Copy to a device; to a GPU without waiting for what is queued there."""
    if device.type != "cuda":
        return values.to(device)
    return pinned(values).to(device, non_blocking=True)


def pinned(values: Tensor) -> Tensor:
    """A copy in memory that a GPU can read by itself. torch's own copy of a large table waits for
    all of its threads, which others may keep busy.
    """
    own = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    _bytes(own)[...] = _bytes(values)
    return own


def _bytes(values: Tensor) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    bits: np.ndarray[tuple[int], np.dtype[np.uint8]]
    bits = values.contiguous().reshape(-1).view(torch.uint8).numpy()  # [bytes]
    return bits
