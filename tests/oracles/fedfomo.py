"""FedFomo (Zhang et al., 2021), algorithm 1: candidates weighted by how much they help,
for their distance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from .fedamp import vector
from .plain import Array, Descent, Ints, Params, Task, logits, losses, on

# (round, client, how many) -> numbers in (0, 1): the luck of its choice
Draw = Callable[[int, int, int], Array]


@dataclass
class Result:
    """What there is after the last round."""

    model: list[Params]
    first: list[Params]  # with which each client's last training began
    stored: list[Params]  # on the server
    affinity: Array  # [clients, clients]
    chosen: list[dict[int, list[int]]] = field(default_factory=list)  # round -> client -> peers


def peers(affinity: Array, own: int, count: int, epsilon: float, luck: Array) -> list[int]:
    """Each in turn: with a chance of epsilon any other that is left, else the one of
    highest affinity.
    """
    clients, actual = len(affinity), []
    anybody = sorted(range(clients), key=lambda n: luck[n])
    best = sorted(range(clients), key=lambda n: (-affinity[n], luck[clients + n]))
    for lucky in luck[2 * clients : 2 * clients + count] < epsilon:
        left = [n for n in (anybody if lucky else best) if n != own and n not in actual]
        actual.append(left[0])
    return actual


def gain(base: Params, candidate: Params, x: Array, y: Ints) -> float:
    """(L(base) - L(candidate)) / |candidate - base|."""
    length = np.sqrt(((vector(candidate) - vector(base)) ** 2).sum())
    help_ = losses(logits(base, x), y).mean() - losses(logits(candidate, x), y).mean()
    return help_ / length if length > 0 else 0.0


def run(
    task: Task,
    descent: Descent,
    count: int,
    epsilon: float,
    decay: float,
    from_first: bool,
    draw: Draw,
) -> Result:
    n, start = len(task.clients), task.start[0]
    now = Result([start] * n, [start] * n, [start] * n, np.zeros((n, n)))
    for t, cohort in enumerate(task.rounds):
        stored, affinity = list(now.stored), now.affinity.copy()
        now.chosen.append({})
        for i, (batches,) in cohort.items():
            others = peers(
                now.affinity[i], i, count, max(0.0, epsilon - t * decay), draw(t, i, 2 * n + count)
            )
            own, base, (x, y) = (
                now.model[i],
                now.first[i] if from_first else now.model[i],
                task.test[i],
            )
            candidates = [own, *(now.stored[j] for j in others)]
            gains = [gain(base, c, x, y) for c in candidates]
            useful = np.maximum(gains, 0)
            if useful.sum() > 0:
                share = useful / useful.sum()
                own = {
                    k: base[k] + sum(s * (c[k] - base[k]) for s, c in zip(share, candidates))
                    for k in base
                }
            now.first[i], now.model[i] = own, descent.run(own, batches, on(task, i))
            now.chosen[t][i] = others
            if task.size(i):  # who has no data has nothing to say
                stored[i] = now.model[i]
                affinity[i, others] += gains[1:]
        now.stored, now.affinity = stored, affinity
    return now
