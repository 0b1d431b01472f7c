"""What the modules of a pool make of a batch under gates, and how they are weighed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedblocks.core.parts import Params

Call = Callable[[Params, Tensor], Tensor]


def mix(gate: Tensor, sent: Tensor, outputs: Tensor) -> Tensor:
    """The input of every module: the gated mean of what the modules before it made,
    those that were not sent left out.
    """
    weights = gate * sent  # [modules, modules before]
    total = weights.sum(-1, keepdim=True)
    return torch.einsum("jk,k...->j...", weights / torch.where(total > 0, total, 1), outputs)


def run_layer(module: Call, stack: Params, inputs: Tensor) -> Tensor:
    """What the modules of a layer make of their inputs: [modules, batch, ...]."""
    copies = [{name: value[slot] for name, value in stack.items()} for slot in range(len(inputs))]
    return torch.stack([module(copy, x) for copy, x in zip(copies, inputs, strict=True)])


def run_modules(
    layers: Sequence[Call],
    stacks: Sequence[Params],
    gates: Sequence[Tensor],
    sent: Sequence[Tensor],
    x: Tensor,
) -> Tensor:
    """The outputs of the last layer's modules under these gates: [outputs, batch, classes]."""
    count = gates[0].shape[1]
    outputs = run_layer(layers[0], stacks[0], x.expand(count, *x.shape))
    for layer, stack, gate, own in zip(layers[1:], stacks[1:], gates, sent, strict=False):
        outputs = run_layer(layer, stack, mix(gate, own, outputs))
    return outputs


def scale(slots: Params, shares: Tensor) -> Params:
    """Every module times a number of its own, [modules]."""
    return {
        name: value * shares.to(value.dtype).view(-1, *[1] * (value.dim() - 1))
        for name, value in slots.items()
    }
