"""Noise that a module draws by torch's functions, as a function of the step's key:
equal on every engine.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor

from fedblocks.core.errors import NetError
from fedblocks.core.mode import current
from fedblocks.core.random import uniform


def drop_out(x: Tensor, p: float, whole_channels: bool) -> Tensor:
    """Dropout of single numbers, or of whole channels, in a training step."""
    if p == 0:
        return x
    shape = (*x.shape[:2], *[1] * (x.dim() - 2)) if whole_channels else tuple(x.shape)
    keep = (uniform(current().next_key(), shape) >= p).to(x.dtype)
    return x * keep / (1 - p) if p < 1 else x * 0


def _dropout(name: str, whole_channels: bool) -> Callable[..., Tensor]:
    def dropout(
        input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        if not training or p == 0:
            return input
        check_training(name)
        noisy = drop_out(input, p, whole_channels)
        return input.copy_(noisy) if inplace else noisy

    return dropout


def _rand(
    *size: Any, dtype: torch.dtype | None = None, device: Any = None, **options: Any
) -> Tensor:
    _check_draw("torch.rand", options)
    return _numbers(uniform, _shape(size, options), dtype or torch.get_default_dtype())


def _randn(
    *size: Any, dtype: torch.dtype | None = None, device: Any = None, **options: Any
) -> Tensor:
    _check_draw("torch.randn", options)
    return _normals(_shape(size, options), dtype or torch.get_default_dtype())


def _rand_like(input: Tensor, dtype: torch.dtype | None = None, **options: Any) -> Tensor:
    _check_draw("torch.rand_like", options)
    return _numbers(uniform, tuple(input.shape), dtype or input.dtype)


def _randn_like(input: Tensor, dtype: torch.dtype | None = None, **options: Any) -> Tensor:
    _check_draw("torch.randn_like", options)
    return _normals(tuple(input.shape), dtype or input.dtype)


def _bernoulli(input: Tensor, p: float | None = None, **options: Any) -> Tensor:
    _check_draw("torch.bernoulli", options)
    drawn = uniform(current().next_key(), tuple(input.shape))
    return (drawn < (input if p is None else p)).to(input.dtype)


def _normals(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Standard normal numbers; complex ones, too, have the variance 1."""
    return _numbers(_part_of_normal if dtype.is_complex else _normal, shape, dtype)


def _part_of_normal(key: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Real and imaginary parts of such numbers: the variance of each is a half."""
    return _normal(key, shape) * math.sqrt(0.5)


def _normal(key: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Standard normal numbers, by Box and Muller."""
    # by rows, so that padding has no part
    radius = uniform(key, shape)
    angle = uniform(current().next_key(), shape)
    return torch.sqrt(-2 * torch.log(radius)) * torch.cos(2 * math.pi * angle)


def _numbers(
    draw: Callable[[Tensor, tuple[int, ...]], Tensor], shape: tuple[int, ...], dtype: torch.dtype
) -> Tensor:
    key = current().next_key()
    if dtype.is_complex:  # both parts are drawn, side by side
        return torch.view_as_complex(draw(key, (*shape, 2))).to(dtype)
    return draw(key, shape).to(dtype)


def _shape(size: tuple[Any, ...], options: dict[str, Any]) -> tuple[int, ...]:
    is_given_whole = len(size) == 1 and isinstance(size[0], tuple | list)
    asked = options.get("size", size[0] if is_given_whole else size)
    return tuple(operator.index(one) for one in asked)


def _check_draw(name: str, options: dict[str, Any]) -> None:
    """Refuse noise that is not the step's own; what is left out would be so without a word."""
    if options.get("generator") is not None:
        raise NetError(
            f"the module draws noise by {name} with a generator of its own, but engines draw from "
            "the step's key and would ignore it",
            "for numbers that stay the same, draw them in __init__ and register them as a buffer; "
            "for noise, leave generator= out",
        )
    if options.get("out") is not None:
        message = f"the module draws noise by {name} with out=, which nothing would be written to"
        raise NetError(message, "use what it returns")
    check_training(name)


def check_training(name: str) -> None:
    """Refuse noise outside a training step."""
    if not current().training:
        raise NetError(
            f"the module draws noise by {name} outside a training step",
            "draw it only where self.training is true",
        )


KEYED: dict[Callable[..., Any], Callable[..., Tensor]] = {
    F.dropout: _dropout("F.dropout", whole_channels=False),
    torch.dropout: _dropout("torch.dropout", whole_channels=False),
    F.dropout1d: _dropout("F.dropout1d", whole_channels=True),
    F.dropout2d: _dropout("F.dropout2d", whole_channels=True),
    F.dropout3d: _dropout("F.dropout3d", whole_channels=True),
    torch.rand: _rand,
    torch.randn: _randn,
    torch.rand_like: _rand_like,
    torch.randn_like: _randn_like,
    torch.bernoulli: _bernoulli,
    Tensor.bernoulli: _bernoulli,
}  # what takes the place of torch's own functions while a user's module runs

_DRAWS = "normal randint randint_like randperm multinomial poisson binomial gumbel_softmax"
_FILLS = "bernoulli_ normal_ uniform_ exponential_ geometric_ cauchy_ log_normal_ random_"
_ALWAYS = {*_DRAWS.split(), *_FILLS.split()}
_IN_TRAINING = {"alpha_dropout", "feature_alpha_dropout", "rrelu", "rrelu_"}
# place of the dropped share
_WITH_SHARE = {"multi_head_attention_forward": 10}


def check_noise(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse a function of torch that would draw noise which no engine could repeat."""
    name = func.__name__
    if name in _ALWAYS or (name in _IN_TRAINING and current().training):
        _refuse(name)
    place = _WITH_SHARE.get(name)
    if place is not None and kwargs.get("training", True):
        share = kwargs.get("dropout_p", args[place] if len(args) > place else 0.0)
        if share > 0:
            _refuse(f"{name} with dropout")


def _refuse(name: str) -> NoReturn:
    raise NetError(
        f"the module draws noise by {name}, which no engine could repeat",
        "use nn.Dropout, F.dropout, torch.rand, torch.randn or torch.bernoulli, which draw from "
        "the step's own key",
    )
