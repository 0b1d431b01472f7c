"""Whether a net's start is what its user thinks: of the seed, or of the weights of a module."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from fedblocks.core.errors import NetError
from fedblocks.core.net import Net
from fedblocks.core.outside_modules import reset, seeded

IGNORES_SEED = (
    "the module seeds torch's randomness itself (torch.manual_seed), so that all seeds, and all "
    "slots of a pool, start alike: leave that line out"
)
ANEW = (
    "the net starts anew from the seed, not from the weights of the module that Net.of was given; "
    "Net.of(..., keep_weights=True) keeps them"
)
ANEW_BASE = (
    "the base of the adapters is drawn at random, and is not the module that Net.of was given: "
    "give the module itself, fb.lora(module), or Net.of(..., keep_weights=True)"
)
_LARGER = 1.5  # times the largest number of a fresh start: training did that, or somebody
_FEW = 32  # numbers whose largest says little


def require_numbers(net: Net) -> None:
    """Refuse a net that starts with NaN."""
    start = net.init(0)
    wrong = next((f'"{name}"' for name in start if start[name].isnan().any()), "")
    if wrong:
        raise NetError(
            f"the net starts with NaN in {wrong}, from which nothing is learned",
            "correct how the module draws it, or the weights that it was given",
        )


def require_new_modules(net: Net) -> None:
    """Refuse a function that makes no new module."""
    with seeded(0):
        is_same = net.make() is net.make()
    if is_same:
        raise NetError(
            "the function that Net.of was given returns the same module each time, so that no seed "
            "would change its start",
            "make the module in it, Net.of(lambda: MyNet()), or give the module itself, "
            "Net.of(module), with keep_weights=True if it is trained",
        )


def ignores_seed(net: Net) -> bool:
    """Whether a module that is made with two seeds leaves torch's randomness in one state, and
    itself with the same numbers.
    """
    states = []
    for seed in (1, 2):
        with seeded(seed):
            net.make()
            states.append(torch.get_rng_state())
    if not torch.equal(*states):
        return False
    one, other = net.init(1), net.init(2)
    return all(torch.equal(one[name], other[name]) for name in one)


def unused_module(net: Net) -> nn.Module | None:
    """The module of a net that starts from others than its weights."""
    make = net.make
    while isinstance(make, partial):
        if make.func is reset:
            module: nn.Module = make.args[0]
            return module
        make = make.args[0]
    return None


def looks_trained(module: nn.Module) -> bool:
    """Whether its numbers cannot be those of a start: larger than such, or others where all starts
    have the same.
    """
    with seeded(0):
        fresh = reset(module)
    starts = dict(fresh.named_parameters())
    return any(
        _is_no_start(value, starts[name])
        for name, value in module.named_parameters()
        if value.numel()
    )


@torch.no_grad()
def _is_no_start(value: Tensor, start: Tensor) -> bool:
    if bool((start == start.flatten()[0]).all()):
        return not torch.equal(value, start)
    largest, usual = float(value.abs().max()), float(start.abs().max())
    return value.numel() >= _FEW and largest > _LARGER * usual
