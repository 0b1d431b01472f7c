"""Blocks of the server that groups of clients have in common: they have one shape, one start and
one rule by which the server takes what all of them send.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from fedblocks.core.blocks import Federated, server_name
from fedblocks.core.errors import UserError
from fedblocks.core.method import Method
from fedblocks.core.parts import Params
from fedblocks.core.rules import Average, MovingAverage, Rule

Start = Callable[[int], Params]  # seed -> slots


def check_common_rules(methods: Mapping[str, Method]) -> None:
    """Refuse groups that write one block by different rules of the server."""
    known: dict[str, tuple[str, Rule]] = {}  # a block of the server -> its first group, and rule
    for group, method in methods.items():
        for name, block in method.blocks().items():
            if isinstance(block, Federated):
                key = server_name(name, block)
                first, rule = known.setdefault(key, (group, block.rule))
                if not _is_same_rule(rule, block.rule):
                    raise UserError(
                        f'groups "{first}" and "{group}" write block "{key}", which the server '
                        f"takes by different rules: {_told(rule)} and {_told(block.rule)}",
                        "give both the same options for what the server does, or run them apart",
                    )


def check_same_shapes(key: str, group: str, new: Params, known: Params) -> None:
    """Refuse a group whose tensors of a common block are others than those of the first."""
    have, want = ({k: list(v.shape) for k, v in params.items()} for params in (new, known))
    differ = sorted(name for name in have.keys() | want.keys() if have.get(name) != want.get(name))
    if differ:
        mine, theirs = (shapes.get(differ[0], "missing") for shapes in (have, want))
        raise UserError(
            f'group "{group}" shares "{key}" with another group, but its tensors have other '
            f'names or shapes: "{differ[0]}" is {mine}, in the other group {theirs} (slots first)',
            "give the block another server name, or make the modules fit together",
        )


def check_same_start(key: str, one: tuple[str, Start], other: tuple[str, Start], seed: int) -> None:
    """Refuse groups that start a common block from different weights, if some were given: of those
    that a seed draws, all take the first group's.
    """
    (first, mine), (second, theirs) = one, other
    if _is_same(mine(seed), theirs(seed)):
        return
    if any(_is_same(start(seed), start(seed + 1)) for start in (mine, theirs)):
        raise UserError(
            f'groups "{first}" and "{second}" start block "{key}" from different weights, and some '
            "were given (keep_weights)",
            "give both nets the same weights, or the blocks other names (Shared(part, name=...))",
        )


def _is_same_rule(one: Any, other: Any) -> bool:
    one, other = (Average() if rule == MovingAverage(1.0) else rule for rule in (one, other))
    if one is other or (type(one) is type(other) and vars(one) == vars(other)):
        return True
    return bool(one == other)


def _told(rule: Rule) -> str:
    """A rule in words: with its options, if it shows them."""
    shown = repr(rule)
    return type(rule).__name__ if " object at 0x" in shown else shown


def _is_same(one: Params, other: Params) -> bool:
    return all(torch.equal(value, other[name]) for name, value in one.items())
