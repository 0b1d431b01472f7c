"""A configuration whose run takes a fraction of a second."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fedblocks.core.state import State

Table = dict[str, Any]


@pytest.fixture
def small() -> Table:
    """Four clients, 3 rounds of FedAvg on made-up points of 3 classes."""
    return {
        "seed": 3,
        "rounds": 3,
        "device": "cpu",
        "data": {
            "name": "gaussian",
            "clients": 4,
            "options": {"rows": 120, "classes": 3, "features": 5},
            "split": [0.6, 0.2, 0.2],
        },
        "net": {"name": "mlp", "hidden": [6]},
        "method": {"name": "fedavg", "lr": 0.1, "batch_size": 8},
    }


@pytest.fixture
def same_bits() -> Callable[[State, State], bool]:
    """Whether two states hold the same tensors, to the bit."""

    def tensors(tree: Any, above: str = "") -> dict[str, torch.Tensor]:
        if isinstance(tree, torch.Tensor):
            return {above: tree}
        return {
            name: v
            for key, one in dict(tree).items()
            for name, v in tensors(one, f"{above}/{key}").items()
        }

    def same(first: State, second: State) -> bool:
        one, other = (
            {**tensors(s.server), **tensors(s.private), **tensors(s.memory)}
            for s in (first, second)
        )
        return one.keys() == other.keys() and all(
            torch.equal(one[name], other[name]) for name in one
        )

    return same
