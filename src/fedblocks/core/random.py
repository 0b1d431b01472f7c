"""Randomness as a function of (seed, round, client, purpose), never of the order of calls."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import torch
from torch import Tensor

_STEP = -7046029254386353131  # the odd constants of the splitmix64 generator, as signed integers
_FIRST = -4658895280553007687
_SECOND = -7723592293110705685


def derive(seed: int, *path: int | str) -> int:
    """A 63-bit seed for one purpose, e.g. `derive(seed, round, client, "order")`."""
    text = "/".join(f"str:{p}" if isinstance(p, str) else f"int:{int(p)}" for p in (seed, *path))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def generator(seed: int, *path: int | str) -> np.random.Generator:
    """A numpy generator for one purpose."""
    return np.random.Generator(np.random.PCG64(derive(seed, *path)))


def fold(key: Tensor, number: int | Tensor) -> Tensor:
    """Another key, made of a key and a number."""
    if key.is_cuda:
        from fedblocks.kernels.triton import noise  # Triton comes with torch's GPU builds only

        return noise.fold(key, number, _FIRST, _SECOND)
    offset = (number + 1) * _SECOND
    if isinstance(offset, int):
        offset = (offset + 2**63) % 2**64 - 2**63  # wraps like the tensor arithmetic does
    return _scrambled_(key + offset)


def uniform(key: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Numbers in (0, 1) that depend on the key only, so that engines and resumed runs
    agree: [..., *shape].
    """
    if key.is_cuda:
        from fedblocks.kernels.triton import noise

        return noise.uniform(key, shape, _STEP, _FIRST, _SECOND)
    count = math.prod(shape)
    index = torch.arange(1, count + 1, device=key.device)
    # its last line moves no bit above 41
    bits = _mixed_(_scrambled_(key[..., None] + index.mul_(_STEP)))
    steps = (bits >> 41).bitwise_and_(0x7FFFFF).to(torch.float32)
    return steps.add_(0.5).div_(2**23).view((*key.shape, *shape))


def _scrambled_(z: Tensor) -> Tensor:
    """splitmix64's finaliser, in place; the masks make the shifts logical ones on
    signed integers.
    """
    z = _mixed_(z)
    return z.bitwise_xor_((z >> 31).bitwise_and_(0x1FFFFFFFF))


def _mixed_(z: Tensor) -> Tensor:
    z.bitwise_xor_((z >> 30).bitwise_and_(0x3FFFFFFFF)).mul_(_FIRST)
    return z.bitwise_xor_((z >> 27).bitwise_and_(0x1FFFFFFFFF)).mul_(_SECOND)
