"""What a forward pass writes down and reads again."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from net_zoo.species import NONE, Species, classify, dense, hidden

WRITES = 'the module writes to its buffer "average" in its forward pass'
CHANGES = "a forward pass leaves nothing behind: it changes its own attribute"


def with_average(module: Any) -> None:
    module.register_buffer("average", torch.zeros(6))


def with_counter(module: Any) -> None:
    module.passes = 0


def with_last(module: Any) -> None:
    module.last = None


def with_log(module: Any) -> None:
    module.log = []


def with_steps_in_a_tensor(module: Any) -> None:
    module.steps = torch.zeros(1)


def with_steps_in_a_list(module: Any) -> None:
    module.seen = {"steps": [0]}


def with_steps_in_an_array(module: Any) -> None:
    module.steps = np.zeros(1)


def with_masks(module: Any) -> None:
    module.masks, module.width = {}, 0


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


def sharpen_late(module: Any, x: Tensor) -> Tensor:
    if module.training:
        module.steps += 1
    return classify(module, x) * (1 if module.steps[0] <= 100 else 3)


def sharpen_late_by_list(module: Any, x: Tensor) -> Tensor:
    if module.training:
        module.seen["steps"][0] += 1
    return classify(module, x) * (1 if module.seen["steps"][0] <= 100 else 3)


def mask_by_length(module: Any, x: Tensor) -> Tensor:
    length = x.shape[1]
    if length not in module.masks:
        module.masks[length] = torch.ones(length, length, dtype=x.dtype).triu()
        module.width = length
    return classify(module, x @ module.masks[length])


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
        f'{CHANGES} "passes"',
    ),
    Species(
        "a counter in a tensor, which shows after 100 steps",
        dense(sharpen_late, with_steps_in_a_tensor),
        NONE,
        f'{CHANGES} "steps"',
    ),
    Species(
        "a counter in a list in a dictionary, which shows after 100 steps",
        dense(sharpen_late_by_list, with_steps_in_a_list),
        NONE,
        f"{CHANGES} \"seen['steps'][0]\"",
    ),
    Species(
        "a counter in an array, which shows after 100 steps",
        dense(sharpen_late, with_steps_in_an_array),
        NONE,
        f'{CHANGES} "steps"',
    ),
    Species("a mask kept by its length", dense(mask_by_length, with_masks)),
    Species(
        "a list that grows",
        dense(write_log, with_log),
        NONE,
        f'{CHANGES} "log"',
    ),
    Species(
        "a mean of the last batch, used in the next",
        dense(carry_over, with_last),
        NONE,
        f'{CHANGES} "last"',
    ),
    Species("a tensor kept to be looked at", dense(keep_for_others, with_last)),
)
