"""FedMN's arithmetic: gates on the edges of a pool of modules, and what a batch becomes
under them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from fedblocks.core.modular_net import ModularNet, modular
from fedblocks.core.net import Net
from fedblocks.core.options import Conflict
from fedblocks.core.parts import Params

Call = Callable[[Params, Tensor], Tensor]


def edges(modules: Sequence[int]) -> int:
    """How many gates a pool has: one for each pair of modules in neighbouring layers,
    one for each output.
    """
    return sum(before * after for before, after in pairwise((*modules, 1)))


def matrices(gates: Tensor, modules: Sequence[int]) -> list[Tensor]:
    """The gates layer by layer, [modules, modules of the layer before]; the prediction
    is a last layer of one.
    """
    shapes = [(after, before) for before, after in pairwise((*modules, 1))]
    parts = torch.split(gates, [math.prod(shape) for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def reached(gates: Sequence[Tensor]) -> list[Tensor]:
    """Which modules an input gets to, 1 = yes: [modules] for each layer, the encoders
    first and the prediction last.
    """
    alive = [torch.ones_like(gates[0][0])]  # every encoder sees the input
    for gate in gates:
        alive.append(((gate * alive[-1]).sum(-1) > 0).to(gate.dtype))
    return alive


def used(gates: Sequence[Tensor]) -> list[Tensor]:
    """The modules between the input and the prediction, by number, for each layer; the
    prediction is the last layer.
    """
    alive = reached(gates)
    needed = [torch.ones_like(alive[-1])]
    for gate, before in zip(reversed(gates), reversed(alive[:-1]), strict=True):
        needed.append((gate * needed[-1][:, None]).sum(0) * before)
    numbers = [mask.nonzero().flatten() for mask in reversed(needed)]
    # a layer cannot be without modules
    return [where if len(where) else where.new_zeros(1) for where in numbers]


def concrete(logits: Tensor, noise: Tensor, temperature: Tensor | float) -> Tensor:
    """Relaxed choices between 0 and 1: the binary concrete distribution; above 1/2 with
    probability sigmoid(logits).
    """
    return torch.sigmoid((torch.logit(noise) + logits) / temperature)


def connected(hard: Tensor, logits: Tensor, modules: Sequence[int]) -> Tensor:
    """The same choices; if no output is reached, also the most probable edges back from
    the prediction.
    """
    gates, chances = matrices(hard, modules), matrices(logits, modules)
    alive = reached(gates)
    missing, target = ~(alive[-1][0] > 0), torch.zeros((), dtype=torch.long, device=hard.device)
    opened: list[Tensor] = []
    for gate, chance, after in zip(
        reversed(gates), reversed(chances), reversed(alive), strict=False
    ):
        missing = missing & (after.gather(0, target.view(1))[0] == 0)
        best = chance.index_select(0, target.view(1))[0].argmax()
        edge = (torch.arange(len(gate), device=gate.device) == target)[:, None] & (
            torch.arange(gate.shape[1], device=gate.device) == best
        )
        opened.append(torch.where(edge & missing, 1, gate))
        target = best
    return torch.cat([gate.flatten() for gate in reversed(opened)])


def mixed(gate: Tensor, alive: Tensor, outputs: Tensor) -> Tensor:
    """The input of every module: the gated mean of what the modules before it made,
    those not reached left out.
    """
    weights = gate * alive  # [modules, modules before]
    total = weights.sum(-1, keepdim=True)
    return torch.einsum("jk,k...->j...", weights / torch.where(total > 0, total, 1), outputs)


def run_layer(module: Call, stack: Params, inputs: Tensor) -> Tensor:
    """What the modules of a layer make of their inputs: [modules, batch, ...]."""
    copies = [{name: value[slot] for name, value in stack.items()} for slot in range(len(inputs))]
    return torch.stack([module(copy, x) for copy, x in zip(copies, inputs, strict=True)])


def run_modules(
    layers: Sequence[Call], stacks: Sequence[Params], gates: Sequence[Tensor], x: Tensor
) -> Tensor:
    """The outputs of the last layer's modules under these gates: [outputs, batch, classes]."""
    count = gates[0].shape[1]
    outputs = run_layer(layers[0], stacks[0], x.expand(count, *x.shape))
    for layer, stack, gate, alive in zip(
        layers[1:], stacks[1:], gates, reached(gates), strict=False
    ):
        outputs = run_layer(layer, stack, mixed(gate, alive, outputs))
    return outputs


def path_of(
    net: Net,
    modules: Sequence[int],
    widths: Sequence[int] | None,
    dropout: float | None,
    spread: float | None,
) -> ModularNet:
    """One module of each layer: a modular net as it is, any other as the encoder of one."""
    if isinstance(net, ModularNet):
        return net
    return modular(
        net,
        widths or (512, *[256] * (len(modules) - 2)),
        0.5 if dropout is None else dropout,
        spread,
    )


def pool_conflicts(
    net: Net, modules: Sequence[int], widths: Sequence[int] | None, **others: object
) -> list[Conflict]:
    """Layers and widths that do not fit, and other options for making a modular net
    where the net is one.
    """
    if not isinstance(net, ModularNet):
        if widths is None or len(widths) == len(modules) - 1:
            return []
        fix = f"give {len(modules) - 1} widths: of an encoder and of each middle block"
        return [Conflict("widths", f"do not fit modules = {list(modules)}", fix)]
    if len(net.stages) != len(modules):
        why = f"these are {len(modules)} layers, and the modular net has {len(net.stages)}"
        return [
            Conflict("modules", why, "give one number for each layer of the net", with_net=True)
        ]
    own = [name for name, value in {"widths": widths, **others}.items() if value is not None]
    why, fix = "a modular net has its own", "leave it out, or change the net"
    return [Conflict(name, why, fix, with_net=True) for name in own]
