"""How many clients fit into a given memory at once."""

from __future__ import annotations

import re

import torch
from torch import Tensor

from fedblocks.core import mode
from fedblocks.core.errors import UserError
from fedblocks.core.method import Method
from fedblocks.core.parts import Params, is_statistic

UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
COPIES = 5  # of every parameter: as sent, at work, its gradient, an optimizer's memory, the result


def bytes_of(text: str) -> int:
    """The number of bytes that a text such as "8GiB" means."""
    amount = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    unit = amount[2].upper() if amount else ""
    if not amount or unit not in UNITS or float(amount[1]) <= 0:
        raise UserError(
            f'"{text}" is not an amount of memory',
            'write a number and a unit, e.g. "8GiB" or "500MB"',
        )
    return int(float(amount[1]) * UNITS[unit])


def chunk_for(memory: int, chunk: int, method: Method, x: Tensor) -> int:
    """Clients that may be trained at once: as many as were asked for, or as fit."""
    one = client_bytes(method, x)
    if one > memory:
        raise UserError(
            f"one client needs about {one / 2**20:.0f} MiB, more than there may be used",
            "give more memory, or use a smaller net or batch",
        )
    return min(chunk, memory // one)


def client_bytes(method: Method, x: Tensor) -> int:
    """About what one client takes while it trains: its parameters, several times, and
    what its gradients need.
    """
    params = method.net.init(0)
    numbers = sum(value.numel() * value.element_size() for value in params.values())
    return COPIES * numbers + 2 * saved_bytes(method, params, x[: method.batch_size].cpu().clone())


def saved_bytes(method: Method, params: Params, x: Tensor) -> int:
    """What one forward pass keeps for its backward pass."""
    kept: dict[int, int] = {}  # storage -> bytes; several tensors may share one

    def pack(value: Tensor) -> Tensor:
        kept[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
        return value

    live = {name: value.requires_grad_(not is_statistic(name)) for name, value in params.items()}
    training = mode.mode(training=True, mapped=False, key=torch.tensor(0))
    with training, torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        logits = method.net(live, x)
    own = {value.untyped_storage().data_ptr() for value in (*live.values(), logits)}
    return sum(size for place, size in kept.items() if place not in own)
