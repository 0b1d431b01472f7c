"""Where the weights of a base come from: modules that others go on using are copied, once."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import nn

from fedblocks.core.errors import NetError
from fedblocks.core.parts import Params


def with_own_modules(make: Any) -> Any:
    """A function that makes a module, with copies of the modules that it was given: whatever
    becomes of these, it makes the same.
    """
    if isinstance(make, nn.Module):
        return copy.deepcopy(make)
    if isinstance(make, partial):
        return partial(make.func, *map(with_own_modules, make.args), **make.keywords)
    return make


def modules_in(make: Any) -> Iterator[nn.Module]:
    """The modules that a function was given."""
    if isinstance(make, nn.Module):
        yield make
    elif isinstance(make, partial):
        for argument in make.args:
            yield from modules_in(argument)


def share_tensors(module: nn.Module, base: Params) -> None:
    """Let a module have the tensors of a base for its own, so that they are held once."""
    for name, value in module.named_parameters():
        if name in base and (value.dtype, value.shape) == (base[name].dtype, base[name].shape):
            value.data = base[name]


def check_numbers(base: Params) -> None:
    """Refuse a base from which nothing can be learned."""
    for name, value in base.items():
        if value.is_floating_point() and not value.isfinite().all():
            what = "NaN" if value.isnan().any() else "an infinity"
            message = f'the base has {what} in "{name}", from which nothing is learned'
            raise NetError(message, "load the weights again, or correct how the module draws them")
