"""Inputs of one data set among larger ones: they stand in the first corner, and a net
cuts them out again.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from fedblocks.core.errors import UserError


class FirstCorner(nn.Module):
    """The first corner of each example: [batch, ...] -> [batch, *shape]."""

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.shape = tuple(shape)

    def forward(self, x: Tensor) -> Tensor:
        return x[(slice(None), *(slice(size) for size in self.shape))]


def own_inputs(
    net: str, input_shape: Sequence[int], own_shape: Sequence[int] | None
) -> tuple[int, ...]:
    """The shape that a net works on: its own where it is given and fits into the
    inputs, else theirs.
    """
    whole, own = tuple(input_shape), tuple(own_shape or input_shape)
    if len(own) != len(whole) or any(small > large for small, large in zip(own, whole)):
        message = f'net "{net}" is to cut {list(own)} out of inputs of shape {list(whole)}'
        raise UserError(
            message, "give own_shape as many sizes, none of them larger, or leave it out"
        )
    return own
