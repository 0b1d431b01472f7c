"""FedMN's routing head that starts from groups of first updates, in numpy."""

from __future__ import annotations

from itertools import product

import numpy as np

from .modfl import clusters
from .plain import Array, Task


def gates_of_group(group: int, groups: int, n: tuple[int, ...]) -> Array:
    """3 for every edge between modules that the group owns, -3 for all others; module k belongs to
    group k modulo the number of groups, or of modules where these are fewer.
    """
    owns = lambda layer, module: (
        module % min(groups, layer) == group % min(groups, layer)  # the prediction is a layer of 1
    )
    logits = []
    for before, after in zip(n, (*n[1:], 1)):
        for j, k in product(range(after), range(before)):
            logits.append(3.0 if owns(after, j) and owns(before, k) else -3.0)
    return np.array(logits)


def fitted_head(
    changes: dict[int, Array], seen: dict[int, Array], groups: int, n: tuple[int, ...], task: Task
) -> tuple[Array, Array]:
    """Weight and bias by ridge regression, written as least squares with rows for the penalty."""
    group = clusters(changes, groups, task)
    clients = list(changes)
    z = np.stack([seen[i] for i in clients])
    wanted = np.stack([gates_of_group(group[i], groups, n) for i in clients])
    rows, goals = z - z.mean(0), wanted - wanted.mean(0)
    ridge = 0.1 * (rows**2).sum(1).mean()
    width = z.shape[1]
    longer = np.concatenate([rows, np.sqrt(ridge) * np.eye(width)])
    aims = np.concatenate([goals, np.zeros((width, goals.shape[1]))])
    weight = np.linalg.lstsq(longer, aims, rcond=None)[0].T
    return weight, wanted.mean(0) - weight @ z.mean(0)
