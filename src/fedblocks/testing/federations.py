"""The small federation of the contract checks, and the ways in which checks change it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedblocks.core.losses import IGNORE
from fedblocks.core.net import Net
from fedblocks.core.random import generator
from fedblocks.data.federation import Federation
from fedblocks.data.rows import Rows

FEATURES, CLASSES = 6, 4
# training examples; the last is even, so that its halves double when it does
SIZES = (10, 7, 3, 8, 5, 6)


def small_net(dtype: torch.dtype = torch.float64) -> Net:
    """A perceptron 6-5-4, in double precision so that checks may be sharp."""
    return Net.of(
        lambda: nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, CLASSES)), dtype=dtype
    )


def small_federation(
    sizes: Sequence[int] = SIZES,
    tags: Sequence[str] = (),
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> Federation:
    """Clients of unequal sizes and two kinds: every second one takes two of the classes
    for each other.
    """
    rng = generator(seed, "small federation")
    kinds = np.arange(len(sizes)) % 2
    parts = [(size, 3, 10) for size in sizes]  # train, validation, test
    owner = np.repeat(np.arange(len(sizes)), [sum(p) for p in parts])
    truth = rng.integers(0, CLASSES, len(owner))
    centres = 2 * rng.normal(size=(CLASSES, FEATURES))
    x = centres[truth] + rng.normal(size=(len(owner), FEATURES))
    y = np.where(kinds[owner] == 1, np.array([0, 1, 3, 2])[truth], truth)
    cuts = np.split(np.arange(len(owner)), np.cumsum(np.array(parts).ravel())[:-1])
    train, validation, test = (Rows.of(cuts[part::3]) for part in range(3))
    return Federation(
        torch.from_numpy(x).to(dtype),
        torch.from_numpy(y),
        train,
        validation,
        test,
        CLASSES,
        tags=dict.fromkeys(tags, kinds),
    )


def without_training_rows(federation: Federation, client: int) -> Federation:
    """The same clients, one of which has nothing to train on."""
    return replace(federation, train=federation.train.where(federation.train.owners != client))


def with_rows_doubled(federation: Federation, client: int) -> Federation:
    """The same clients, one of which holds each training row twice, side by side."""
    return replace(
        federation,
        train=Rows.of(
            [np.repeat(r, 2) if c == client else r for c, r in enumerate(federation.train)]
        ),
    )


def with_junk_first(federation: Federation, value: float, label: int) -> Federation:
    """The same clients over a pool whose row 0, which engines pad with, belongs to nobody."""
    x, y = federation.x, federation.y
    junk = torch.full_like(x[:1], value if x.is_floating_point() else label)
    rows: dict[str, Any] = {
        part: own.renumber(own.index + 1) for part, own in federation.parts.items()
    }
    return replace(
        federation, x=torch.cat([junk, x]), y=torch.cat([torch.full_like(y[:1], label), y]), **rows
    )


def with_broken_inputs(federation: Federation, client: int) -> Federation:
    """The same clients, one of which trains on NaN."""
    x = federation.x.clone()
    x[_rows(federation, [client])] = float("nan")
    return replace(federation, x=x)


def with_other_data_elsewhere(federation: Federation, client: int) -> Federation:
    """One client as it is; all others train on other inputs and other labels."""
    x, y = federation.x.clone(), federation.y.clone()
    rows = _rows(federation, [c for c in range(federation.clients) if c != client])
    if x.is_floating_point():
        x[rows] = 0.5 - x[rows]
    y[rows] = torch.where(y[rows] == IGNORE, IGNORE, (y[rows] + 1) % federation.classes)
    return replace(federation, x=x, y=y)


def _rows(federation: Federation, clients: Sequence[int]) -> Tensor:
    """The training rows of some clients."""
    return torch.from_numpy(np.concatenate([federation.train[c] for c in clients]))
