"""Frozen blocks: what is in the model of everybody from the start, and how one tells that it is
still the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain

import torch

from fedblocks.core.blocks import Block, Frozen
from fedblocks.core.errors import UserError
from fedblocks.core.frozen_hash import content_hash
from fedblocks.core.method import Method
from fedblocks.core.net import Net
from fedblocks.core.parts import Blocks, Params, is_statistic
from fedblocks.core.state import initial_copy

BASE = "base"  # the block of a net's tensors that nobody trains
ADAPTERS = "adapters"  # what is as fixed as the base, and in no tensor: their scale


@dataclass(frozen=True, eq=False)
class Base:
    """The tensors of a net that nobody trains, which the net holds itself: so every method runs on
    it, and none has to name it.
    """

    net: Net

    def init(self, seed: int) -> Params:
        return self.net.base


def initial_frozen(method: Method, seed: int) -> Blocks:
    """The frozen blocks that a method names, as everybody makes them for itself."""
    layout = method.blocks().items()
    blocks = {name: initial_copy(b.part, seed) for name, b in layout if isinstance(b, Frozen)}
    for name, block in blocks.items():
        moving = next((key for key in block if is_statistic(key)), None)
        if moving is not None:
            raise UserError(
                f'the block "{name}" is frozen, and training would move its "{moving}"',
                "use GroupNorm, or a base whose statistics rest: fb.lora(...)",
            )
    return blocks


def check_untrained(method: Method) -> None:
    """Refuse phases that train a frozen block."""
    layout: dict[str, Block] = method.blocks()
    for phase in chain(method.phases(), method.adaptation(), method.joining()):
        for name in phase.train:
            if isinstance(layout.get(name), Frozen):
                raise UserError(
                    f'a phase of {type(method).__name__} trains "{name}", which is frozen',
                    "leave the block out of the phase, or give it another home",
                )


def frozen_hashes(method: Method, seed: int) -> dict[str, str]:
    """Block -> its content hash, of everything frozen in a method's model; and what its adapters
    are.
    """
    blocks = {name: content_hash(b) for name, b in initial_frozen(method, seed).items()}
    net = method.net
    adapters = {ADAPTERS: net.adapters_are} if net.adapters_are else {}
    return {**blocks, BASE: net.base_hash, **adapters} if net.base else blocks


def is_of_adapters(name: str) -> bool:
    """Whether an entry says what adapters are; its name may stand behind that of a group."""
    return name.rpartition("/")[2] == ADAPTERS


def told_apart(name: str, mine: str | None, theirs: str | None, there: str) -> str:
    """In words, how a frozen block of one's own differs from the one there."""
    if is_of_adapters(name):
        return f"the adapters have {mine or 'no scale'} here and {theirs or 'no scale'} {there}"
    brief = ["none" if digest is None else digest[:12] for digest in (mine, theirs)]
    return f'the frozen block "{name}" has the hash {brief[0]} here and {brief[1]} {there}'


@dataclass(frozen=True, eq=False)
class FrozenRecord:
    """The frozen blocks of all groups of clients, by "group/block"."""

    blocks: Blocks  # as they are used
    hashes: dict[str, str]  # of what they were at the start

    @staticmethod
    def of(
        methods: Mapping[str, Method],
        held: Mapping[str, Blocks],
        seed: int,
        device: torch.device,
    ) -> FrozenRecord:
        """The record of methods whose groups hold these blocks; a base is held by its net."""
        blocks = {f"{g}/{name}": b for g, own in held.items() for name, b in own.items()}
        bases = {f"{g}/{BASE}": one.net.base_on(device) for g, one in methods.items()}
        blocks |= {name: base for name, base in bases.items() if base}
        hashes = {
            f"{group}/{name}": digest
            for group, method in methods.items()
            for name, digest in frozen_hashes(method, seed).items()
        }
        return FrozenRecord(blocks, hashes)

    def check(self) -> None:
        """Refuse to go on with blocks that are not what they were at the start."""
        for name, block in self.blocks.items():
            if content_hash(block) != self.hashes[name]:
                raise UserError(
                    f'the frozen block "{name}" has changed since the start of the run',
                    "look for code that writes to tensors in place: a method, a layer or a hook",
                )
