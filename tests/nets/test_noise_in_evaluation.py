"""Noise outside training is refused, whichever function draws it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from fedblocks.core import mode
from fedblocks.core.errors import NetError
from fedblocks.layers import noise

X = torch.zeros(2, 3)
DRAWS: dict[str, Callable[[], torch.Tensor]] = {
    "torch.rand": lambda: noise._rand(2, 3),
    "torch.randn": lambda: noise._randn(2, 3),
    "torch.rand_like": lambda: noise._rand_like(X),
    "torch.randn_like": lambda: noise._randn_like(X),
    "torch.bernoulli": lambda: noise._bernoulli(X, 0.5),
    "dropout": lambda: noise._dropout("dropout", False)(X + 1),
}


@pytest.mark.parametrize("name", DRAWS)
def test_noise_is_drawn_in_training_and_refused_in_evaluation(name: str) -> None:
    with mode.mode(training=True, mapped=False, key=torch.tensor(7)):
        assert DRAWS[name]().shape == X.shape
    with mode.mode(training=False, mapped=False), pytest.raises(NetError, match=name):
        DRAWS[name]()
