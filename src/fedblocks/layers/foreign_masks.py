"""Attention masks of the package transformers, whose code looks at their numbers, in a form that
can be mapped over clients.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from importlib import import_module
from typing import Any

from torch import nn

from fedblocks.core.mode import current

_PACKAGE = "transformers."
_LOOKS = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}


def keep_masks_whole(module: nn.Module) -> None:
    """For a module with parts of transformers: a pass that is mapped makes every mask, and does
    not ask whether a batch could do without, which differs from client to client.
    """
    if any(type(part).__module__.startswith(_PACKAGE) for part in module.modules()):
        _register_masks()


@cache
def _register_masks() -> None:
    """Once a process, at the place that transformers has for masks of others; where there is none,
    `check_net` says that the module cannot be mapped.
    """
    try:
        masks = import_module("transformers.masking_utils").AttentionMaskInterface
    except (ImportError, AttributeError):  # before version 5
        return
    for name in ("eager", "sdpa"):
        masks.register(name, _whole_if_mapped(masks()[name]))


def _whole_if_mapped(make_mask: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(make_mask)
    def make(*args: Any, **options: Any) -> Any:
        return make_mask(*args, **(options | _LOOKS if current().mapped else options))

    return make
