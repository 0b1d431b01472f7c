"""FedMN's gates on the edges of a pool of modules: how they are drawn, and what they reach."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from fedblocks.core.random import uniform

STREAM = 1 << 22  # the number of a noise stream that no layer reaches


def edges(modules: Sequence[int]) -> int:
    """How many gates a pool has: one for each pair of modules in neighbouring layers, one for
    each output.
    """
    return sum(before * after for before, after in pairwise((*modules, 1)))


def matrices(gates: Tensor, modules: Sequence[int]) -> list[Tensor]:
    """The gates layer by layer, [modules, modules of the layer before]; the prediction
    is a last layer of one.
    """
    shapes = [(after, before) for before, after in pairwise((*modules, 1))]
    parts = torch.split(gates, [math.prod(shape) for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def modules_reached(gates: Sequence[Tensor]) -> list[Tensor]:
    """Which modules an input gets to, 1 = yes: [modules] for each layer, the encoders
    first and the prediction last.
    """
    alive = [torch.ones_like(gates[0][0])]  # every encoder sees the input
    for gate in gates:
        alive.append(((gate * alive[-1]).sum(-1) > 0).to(gate.dtype))
    return alive


def modules_used(gates: Sequence[Tensor]) -> list[Tensor]:
    """Which modules stand between the input and the prediction, 1 = yes: [modules] for each
    layer, the encoders first and the prediction last.
    """
    alive = modules_reached(gates)
    used = [torch.ones_like(alive[-1])]
    for gate, before in zip(reversed(gates), reversed(alive[:-1]), strict=True):
        leads_on = (gate * used[-1][:, None]).sum(0) > 0  # [modules before]
        used.append(before * leads_on.to(before.dtype))
    return used[::-1]


def shares(gates: Sequence[Tensor], sent: Sequence[Tensor]) -> list[Tensor]:
    """How much of the prediction comes through each module: [modules] for each layer, adding up
    to 1; each module hands on the gated mean of those before it that were sent.
    """
    through = [torch.ones_like(gates[-1][:, 0])]
    for gate, before in zip(reversed(gates), reversed(sent[:-1]), strict=True):
        weights = gate * before  # [modules, modules before]
        total = weights.sum(-1, keepdim=True)
        through.append(through[-1] @ (weights / torch.where(total > 0, total, 1)))
    return through[:0:-1]


def gates_used(gates: Tensor, modules: Sequence[int]) -> Tensor:
    """The same gates, 0 where they lead from or to a module that the prediction does not
    use: [edges].
    """
    by_layer = matrices(gates, modules)
    used = modules_used(by_layer)
    between = zip(by_layer, used, used[1:], strict=False)
    return torch.cat(
        [(gate * after[:, None] * before).flatten() for gate, before, after in between]
    )


def concrete(
    logits: Tensor, uniform: Tensor, temperature: Tensor | float, noise: Tensor | float = 1.0
) -> Tensor:
    """Relaxed choices between 0 and 1: the binary concrete distribution. With all of the noise
    above 1/2 with probability sigmoid(logits), without noise where the logits are positive.
    """
    return torch.sigmoid((noise * torch.logit(uniform) + logits) / temperature)


def draw_relaxed(
    logits: Tensor, key: Tensor, temperature: Tensor | float, noise: Tensor | float = 1.0
) -> Tensor:
    """Relaxed choices, drawn with the noise of a key: [edges]."""
    draws = uniform(key, tuple(logits.shape)).to(logits.dtype)
    return concrete(logits, draws.clamp(1e-6, 1 - 1e-6), temperature, noise)


def connect(hard: Tensor, logits: Tensor, modules: Sequence[int]) -> Tensor:
    """The same choices; if no output is reached, also the most probable edges back from
    the prediction.
    """
    gates, chances = matrices(hard, modules), matrices(logits, modules)
    alive = modules_reached(gates)
    missing = ~(alive[-1][0] > 0)
    target = torch.zeros((), dtype=torch.long, device=hard.device)
    opened: list[Tensor] = []
    backwards = zip(reversed(gates), reversed(chances), reversed(alive), strict=False)
    for gate, chance, after in backwards:
        missing = missing & (after.gather(0, target.view(1))[0] == 0)
        best = chance.index_select(0, target.view(1))[0].argmax()
        is_target = torch.arange(len(gate), device=gate.device) == target
        is_best = torch.arange(gate.shape[1], device=gate.device) == best
        edge = is_target[:, None] & is_best  # [modules, modules before]
        opened.append(torch.where(edge & missing, 1, gate))
        target = best
    return torch.cat([gate.flatten() for gate in reversed(opened)])
