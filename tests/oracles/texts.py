"""A federation of tiny texts for the oracles of recurrent methods, and the comparison on it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from fedblocks.core.method import Method
from fedblocks.core.net import Net
from fedblocks.data.federation import Federation
from fedblocks.data.rows import Rows
from fedblocks.engines.round import Engine
from fedblocks.nets.text import next_word

from .autograd import IGNORE
from .definition import Course
from .harness import SIZES, TEST_SIZES, _numbered, agrees, initial, plans
from .plain import Outcome, Task

WORDS, STEPS = 9, 5
EMBEDDING, HIDDEN = 3, 4


def text_module() -> nn.Module:
    sizes = {"embedding": EMBEDDING, "hidden": HIDDEN, "projection": 5}
    return next_word((STEPS,), WORDS, **sizes).make()


def text_net() -> Net:
    return Net.of(text_module, dtype=torch.float64, input_shape=(STEPS,))


def texts() -> Federation:
    """Each client counts in steps of its own; every third text is short: padded with 0,
    not scored there.
    """
    draw = np.random.Generator(np.random.PCG64(5))
    train, rows = _numbered(SIZES, 0)
    test, rows = _numbered(TEST_SIZES, rows)
    owner = np.empty(rows, dtype=np.int64)
    for client, own in enumerate(zip(train, test)):
        owner[np.concatenate(own)] = client
    first = draw.integers(0, WORDS - 1, rows)
    tokens = 1 + (first[:, None] + (1 + owner % 3)[:, None] * np.arange(STEPS + 1)) % (WORDS - 1)
    tokens[::3, 3:] = 0
    x, y = tokens[:, :-1], np.where(tokens[:, 1:] == 0, IGNORE, tokens[:, 1:])
    parts = Rows.of(train), Rows.none(len(SIZES)), Rows.of(test)
    return Federation(torch.from_numpy(x), torch.from_numpy(y), *parts, classes=WORDS)


def text_task(method: Method, slots: int = 2, **courses: Sequence[Course]) -> Task:
    data = texts()
    x, y = data.x.numpy(), data.y.numpy()
    return Task(
        [initial(text_module, slot) for slot in range(slots)],
        train=[(x[rows], y[rows]) for rows in data.train],
        test=[(x[rows], y[rows]) for rows in data.test],
        **plans(method, SIZES, **courses),
    )


def agrees_on_texts(method: Method, expected: Outcome, engine: Engine) -> None:
    agrees(method, expected, engine, texts())
