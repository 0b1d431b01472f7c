"""Noise that is not the step's own is refused, whichever function draws it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from fedblocks.core import mode
from fedblocks.core.errors import NetError
from fedblocks.layers import noise
from fedblocks.layers.guard import Guard

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


WITH_OPTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "torch.rand": lambda **options: torch.rand(2, 3, **options),
    "torch.randn": lambda **options: torch.randn((2, 3), **options),
    "torch.rand_like": lambda **options: torch.rand_like(X, **options),
    "torch.randn_like": lambda **options: torch.randn_like(X, **options),
    "torch.bernoulli": lambda **options: torch.bernoulli(X, **options),
}


GENERATOR = ("generator", torch.Generator(), "with a generator of its own, but .* would ignore it")
PLACE = ("out", torch.zeros(2, 3), "with out=, which nothing would be written to")
TAKE_A_PLACE = ("torch.rand", "torch.randn", "torch.bernoulli")


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("name", "option", "value", "says"),
    [
        *((name, *GENERATOR) for name in WITH_OPTIONS),
        *((name, *PLACE) for name in TAKE_A_PLACE),
    ],
)
def test_noise_with_a_generator_or_a_place_of_its_own_is_refused(
    name: str, option: str, value: Any, says: str, training: bool
) -> None:
    draw = WITH_OPTIONS[name]
    with (
        mode.mode(training=training, mapped=False, key=torch.tensor(7)),
        Guard(nn.Identity(), []),
        pytest.raises(NetError, match=f"{name} {says}"),
    ):
        draw(**{option: value})


@pytest.mark.parametrize("name", WITH_OPTIONS)
def test_options_of_noise_that_are_none_are_as_if_they_were_left_out(name: str) -> None:
    with mode.mode(training=True, mapped=False, key=torch.tensor(7)), Guard(nn.Identity(), []):
        assert WITH_OPTIONS[name](generator=None).shape == X.shape
