"""Noise that a forward pass draws."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from net_zoo.species import NONE, ONE, Make, Species, dense, hidden

OTHER_NUMBERS = "three clients train as in plain PyTorch: "


def disturbed(noise: Callable[[Tensor], Tensor]) -> Make:
    """Noise on the hidden layer, in training."""

    def run(module: Any, x: Tensor) -> Tensor:
        h = hidden(module, x)
        return module.fc(noise(h) if module.training else h)

    return dense(run)


def drop_by_steps(module: Any, x: Tensor) -> Tensor:
    """Dropout where the examples are not the first dimension."""
    h = F.dropout(hidden(module, x)[None].expand(3, -1, -1) * 1, 0.5, module.training)
    return module.fc(h.mean(0))


NOISE = (
    Species("`F.dropout(x, p, self.training)`", disturbed(lambda h: F.dropout(h, 0.5))),
    Species(
        "`F.dropout(x)`, in evaluation, too",
        dense(lambda m, x: m.fc(F.dropout(hidden(m, x)))),
        NONE,
        "the module draws noise by F.dropout outside a training step",
    ),
    Species(
        "dropout with examples in the second dimension",
        dense(drop_by_steps),
        ONE,
        OTHER_NUMBERS,
    ),
    Species("`torch.randn_like`", disturbed(lambda h: h + torch.randn_like(h) / 10)),
    Species("`torch.bernoulli`", disturbed(lambda h: h * torch.bernoulli(0.5 + 0 * h.detach()))),
    Species(
        "`torch.rand(..., generator=...)`",
        disturbed(lambda h: h * torch.rand(6, generator=torch.Generator().manual_seed(0))),
        NONE,
        "the module draws noise by torch.rand with a generator of its own",
    ),
    Species(
        "`bernoulli_`",
        disturbed(lambda h: h * torch.empty_like(h).bernoulli_(0.5)),
        NONE,
        "the module draws noise by bernoulli_, which no engine could repeat",
    ),
    Species(
        "`F.gumbel_softmax`",
        disturbed(F.gumbel_softmax),
        NONE,
        "the module draws noise by gumbel_softmax, which no engine could repeat",
    ),
    Species(
        "an operator of aten",
        disturbed(lambda h: torch.ops.aten.native_dropout(h, 0.5, True)[0]),
        NONE,
        "it draws from torch's common randomness",
    ),
    Species("Python's `random`", disturbed(lambda h: h * random.random()), NONE, OTHER_NUMBERS),
    Species("NumPy's `random`", disturbed(lambda h: h * np.random.rand()), NONE, OTHER_NUMBERS),
)
