"""What the numbers of a map mean: names for branches, gates, routes and clusters."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch

from fedblocks.core.blocks import Private
from fedblocks.core.method import Method
from fedblocks.core.pieces import Piece
from fedblocks.methods.fedmn.method import FedMN
from fedblocks.methods.fedmn.reference import FedMNReference
from fedblocks.methods.flow.base import Routed
from fedblocks.methods.flow.dynamic_routing import DynamicRouting
from fedblocks.methods.pfedmb.method import PFedMB

Floats = npt.NDArray[np.float64]


def is_net(method: Method, block: str) -> bool:
    """Whether a block holds tensors of a net."""
    home = method.blocks().get(block)
    return isinstance(home, Private) and isinstance(home.part, Piece)


def readable(
    method: Method, block: str, values: Floats, labels: list[str]
) -> tuple[Floats, list[str]]:
    """The numbers as people read them, [rounds, clients, numbers], and a name for each;
    else those given.
    """
    names = _names(method, block)
    if len(names) != len(labels):
        return values, labels
    # kept as logits
    if isinstance(method, PFedMB) and block == "alpha" and method.alpha_param == "softmax":
        rows = torch.from_numpy(values).reshape(*values.shape[:2], -1, method.branches).softmax(-1)
        return rows.reshape(values.shape).numpy(), names
    return values, names


def _names(method: Method, block: str) -> list[str]:
    home = method.blocks().get(block)
    match method:
        case PFedMB() if block == "alpha" and isinstance(home, Private):
            rows = len(home.part.init(0)["value"])
            return [f"layer {i}, branch {j}" for i, j in np.ndindex(rows, method.branches)]
        case FedMN() | FedMNReference() if block == "gates":
            return gate_names(method.modules)
        case DynamicRouting() if block == "route":
            return ["first branch", "second branch"]
        case Routed() if block == "route":
            return ["shared branch", "local branch", "differs between instances by"]
    return _private_names(home) if isinstance(home, Private) else []


def gate_names(modules: tuple[int, ...]) -> list[str]:
    """In the order in which gates are kept: layer by layer, from which module to which."""
    names: list[str] = []
    for layer, (before, after) in enumerate(pairwise((*modules, 1)), 1):
        for to, start in np.ndindex(after, before):
            end = "out" if layer == len(modules) else f"{layer + 1}.{to}"
            names.append(f"{layer}.{start} → {end}")
    return names


def _private_names(home: Private) -> list[str]:
    shapes = {key: tuple(value.shape) for key, value in home.part.init(0).items()}
    names = [
        f"{key} {','.join(map(str, i))}".strip()
        for key, shape in shapes.items()
        for i in np.ndindex(shape)
    ]
    return [name.removeprefix("value ") for name in names]
