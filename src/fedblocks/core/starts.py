"""How the slots of a pool start: of initialisations by number; 0 is that of every method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from fedblocks.core.parts import Params

Draw = Callable[[int], Params]  # number -> an initialisation of its own


class Start(Protocol):
    """The slots of a pool before the first round."""

    def slots(self, draw: Draw, size: int) -> Params:
        """name -> [size, ...]"""


@dataclass(frozen=True)
class Independent:
    """Every slot is an initialisation of its own."""

    def slots(self, draw: Draw, size: int) -> Params:
        return stack([draw(slot) for slot in range(size)])


@dataclass(frozen=True)
class Alike:
    """All slots are the same initialisation."""

    def slots(self, draw: Draw, size: int) -> Params:
        return stack([draw(0)] * size)


@dataclass(frozen=True)
class Common:
    """Slots around one initialisation, which their mean is: for parameters that are mixed.

    The mean of independent ones has 1 / sqrt(size) of the spread of one in every layer, so that a
    deep net of such means is nearly silent. `apart` is the distance between slots; 1: that between
    independent ones.
    """

    apart: float = 1.0  # chosen by measurement, see docs/methods/pfedmb.md

    def slots(self, draw: Draw, size: int) -> Params:
        centre, others = draw(0), stack([draw(slot) for slot in range(1, size + 1)])
        return {
            name: centre[name] + self.apart * (own - own.mean(0)) for name, own in others.items()
        }


def stack(copies: list[Params]) -> Params:
    """Copies side by side: name -> [copies, ...]."""
    return {name: torch.stack([copy[name] for copy in copies]) for name in copies[0]}
