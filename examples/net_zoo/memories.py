"""What a forward pass writes down and reads again."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from net_zoo.species import NONE, Species, classify, dense, hidden

WRITES = 'the module writes to its buffer "average" in its forward pass'


def with_average(module: Any) -> None:
    module.register_buffer("average", torch.zeros(6))


def with_counter(module: Any) -> None:
    module.passes = 0


def with_last(module: Any) -> None:
    module.last = None


def with_log(module: Any) -> None:
    module.log = []


def average_in_place(module: Any, x: Tensor) -> Tensor:
    h = hidden(module, x)
    if module.training:
        module.average.lerp_(h.detach().mean(0), 0.1)
    return module.fc(h - module.average)


def average_anew(module: Any, x: Tensor) -> Tensor:
    h = hidden(module, x)
    if module.training:
        module.average = 0.9 * module.average + 0.1 * h.detach().mean(0)
    return module.fc(h - module.average)


def count(module: Any, x: Tensor) -> Tensor:
    module.passes += 1
    return classify(module, x) * (1 if module.passes < 1000 else 0.5)


def write_log(module: Any, x: Tensor) -> Tensor:
    module.log.append(len(x))
    return classify(module, x)


def carry_over(module: Any, x: Tensor) -> Tensor:
    before, module.last = module.last, x.detach().mean(0)
    return classify(module, x if before is None else x + before)


def keep_for_others(module: Any, x: Tensor) -> Tensor:
    module.last = hidden(module, x)
    return module.fc(module.last)


MEMORIES = (
    Species("a moving average, in place", dense(average_in_place, with_average), NONE, WRITES),
    Species("a moving average, assigned anew", dense(average_anew, with_average), NONE, WRITES),
    Species(
        "a counter of passes",
        dense(count, with_counter),
        NONE,
        'a forward pass leaves nothing behind: it changes its own attribute "passes"',
    ),
    Species(
        "a list that grows",
        dense(write_log, with_log),
        NONE,
        'a forward pass leaves nothing behind: it changes its own attribute "log"',
    ),
    Species(
        "a mean of the last batch, used in the next",
        dense(carry_over, with_last),
        NONE,
        "three clients train as in plain PyTorch: ",
    ),
    Species("a tensor kept to be looked at", dense(keep_for_others, with_last)),
)
