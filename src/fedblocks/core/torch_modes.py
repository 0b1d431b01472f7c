"""Modes of torch that a caller may have set, under which nothing here may run: they would change
numbers that the configuration says, or leave no gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

Given = ParamSpec("Given")
Result = TypeVar("Result")


@contextmanager
def own_modes() -> Iterator[None]:
    """Gradients on, inference mode off, and no numbers rounded but where `precision` says so."""
    with ExitStack() as modes:
        modes.enter_context(torch.inference_mode(False))
        modes.enter_context(torch.enable_grad())
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                modes.enter_context(torch.autocast(device, enabled=False))
        yield


def in_own_modes(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """A function that trains or evaluates, whatever modes its caller has set."""

    @wraps(function)
    def inner(*args: Given.args, **options: Given.kwargs) -> Result:
        with own_modes():
            return function(*args, **options)

    return inner
