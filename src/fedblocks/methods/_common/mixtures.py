"""What methods have in common in which a client mixes parts that many share: how the parts start,
and how far a step of theirs moves the mixture.
"""

from __future__ import annotations

from typing import Annotated, Literal

from torch import Tensor

from fedblocks.core.options import Help
from fedblocks.core.starts import Common, Independent, Start

MixtureStart = Annotated[
    Literal["common", "independent"],
    Help(
        'branches around one "common" initialisation, which an even mixture of them is, or '
        '"independent" ones, of which it has 1 / sqrt(B) of the spread'
    ),
]
STARTS: dict[str, Start] = {"common": Common(), "independent": Independent()}
StepScale = Annotated[
    Literal["mixture", "printed"],
    Help(
        '"mixture": a step moves the mixture as far as lr moves one net; "printed": by lr times '
        "the sum of the squared weights, lr / B where they are even"
    ),
]


def steps_of_one_net(weights: Tensor) -> Tensor:
    """What the parts' gradients are multiplied by, so that the mixture moves as one net does: [].

    A part's gradient is its weight times that of the mixture, and so is what its step adds to
    the mixture: all parts together move it by the sum of the squared weights.
    """
    return 1 / weights.detach().square().sum()


def scale_gradient(value: Tensor, factor: Tensor) -> Tensor:
    """The same value, through which gradients come multiplied."""
    fixed = value.detach()
    return fixed + factor * (value - fixed)
