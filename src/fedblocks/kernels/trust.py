"""Kernels are checked before they are used: once for each size, on every machine.

A compiler can be wrong for some sizes only. So the first use of a kernel compares it with torch's
own operation in double precision, on numbers made for that; one that is wrong, or cannot be
compiled, is replaced by torch's operation.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedblocks.kernels.cuda.nvrtc import describe_machine
from fedblocks.kernels.device_errors import is_shortage
from fedblocks.kernels.private_cache import keep, recall

CLIENTS = 2  # of a stack, on which a kernel is tried
# largest error of a result, as a part of the largest result
LIMITS = {"tf32x3": 2e-5, "bf16x6": 2e-5, "tf32": 5e-3, "bf16": 1e-2}
PIECE = 2**20  # numbers that are compared at once
Operation = Callable[..., Tensor]


@dataclass(frozen=True)
class KernelUse:
    """What a kernel is compiled for."""

    kernel: str
    sizes: tuple[int, ...]
    precision: str


_errors: dict[tuple[KernelUse, torch.device], float] = {}


def run_checked(
    use: KernelUse,
    kernel: Operation,
    plain: Operation,
    tensors: Sequence[Tensor | None],
    rest: tuple[Any, ...],
) -> Tensor:
    """What the kernel gives for tensors with the clients first, or torch's operation if the kernel
    is wrong here.
    """
    run = kernel if _is_right(use, kernel, plain, tensors, rest) else plain
    return run(*tensors, *rest)


def _is_right(
    use: KernelUse,
    kernel: Operation,
    plain: Operation,
    tensors: Sequence[Tensor | None],
    rest: tuple[Any, ...],
) -> bool:
    device = next(t.device for t in tensors if t is not None)
    place = use, device
    if place not in _errors:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return False  # nothing can be compared while a graph is recorded
        name = _file_name(*place)
        error = _stored_error(name)
        if error is None:
            error = _error_of(kernel, plain, [_samples(t) for t in tensors], rest)
            keep(name, json.dumps(error).encode())
        _errors[place] = error
        if not error <= LIMITS[use.precision]:
            _warn(use, error)
    return _errors[place] <= LIMITS[use.precision]


def _error_of(
    kernel: Operation, plain: Operation, samples: list[Tensor | None], rest: tuple[Any, ...]
) -> float:
    """The largest error as a part of the largest result; infinite if there is no result."""
    with torch.no_grad():
        expected = plain(*(t if t is None else t.double() for t in samples), *rest)
        try:
            actual = kernel(*samples, *rest)
        except Exception as failure:  # the compilers raise errors of many kinds
            if is_shortage(failure):
                raise
            return float("inf")
        error = _largest_difference(actual, expected) / torch.stack(expected.aminmax()).abs().max()
    return float(error) if error.isfinite() else float("inf")


def _largest_difference(actual: Tensor, expected: Tensor) -> Tensor:
    """Piece by piece: a first use may be at the peak of a step, where memory is scarce."""
    pieces = (t.flatten().split(PIECE) for t in (actual, expected))
    return torch.stack([(a.double() - e).abs().max() for a, e in zip(*pieces, strict=True)]).max()


def _samples(like: Tensor | None) -> Tensor | None:
    """Numbers between -1 and 1 in the place of a tensor of few clients, in memory as it lies.

    Not drawn: generators belong to the runs. Not the tensor itself: it may be all zeros.
    """
    if like is None:
        return None
    shape = (min(CLIENTS, len(like)), *like.shape[1:])
    count = torch.arange(shape[0] * like[0].numel(), device=like.device, dtype=torch.double)
    values = ((count * 12.9898 + like.dim()).sin() * 43758.5453).frac().view(shape).to(like.dtype)
    turned = like.dim() == 3 and like.stride(1) == 1 and like.stride(2) != 1
    return values.mT.contiguous().mT if turned else values


def _stored_error(name: str) -> float | None:
    content = recall(name)
    return None if content is None else float(json.loads(content))


def _file_name(use: KernelUse, device: torch.device) -> str:
    everything = json.dumps([astuple(use), describe_machine(device), _source_digest()])
    return f"check-{sha256(everything.encode()).hexdigest()[:32]}"


@cache
def _source_digest() -> str:
    files = sorted(Path(__file__).parent.rglob("*.py"))
    return sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _warn(use: KernelUse, error: float) -> None:
    what = "gives no result" if error == float("inf") else f"is wrong by {error:.1%}"
    warnings.warn(
        f"a kernel ({use.kernel}, {use.precision}, sizes {use.sizes}) {what} on this machine; "
        "torch's own operation is used in its place, which may be slower",
        RuntimeWarning,
        stacklevel=2,
    )
