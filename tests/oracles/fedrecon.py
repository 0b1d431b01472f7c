"""FedRecon (Singhal et al., 2021), algorithm 1: l is rebuilt on the support half, g
learns on the query half.
"""

from __future__ import annotations

import numpy as np

from .fedopt import second_moment
from .plain import Batches, Descent, Outcome, Params, Task, logits, mean, on


def chosen(w: Params, starts: tuple[str, ...]) -> Params:
    return {k: v for k, v in w.items() if k.startswith(starts)}


def moved(
    task: Task, i: int, part: Params, rest: Params, batches: Batches, descent: Descent
) -> Params:
    """Descent on one part of the net, the rest frozen."""
    gradient = on(task, i)
    return descent.run(part, batches, lambda v, batch: gradient({**rest, **v}, batch))


def run(
    task: Task,
    descent: Descent,
    recon: Descent,
    local: tuple[str, ...] = ("4.",),  # names of l begin so
    zero: bool = False,
    halves: bool = True,
    server_lr: float = 1.0,
    yogi: bool = False,
) -> Outcome:
    w = task.start[0]
    fresh = {k: np.zeros_like(v) if zero else v for k, v in chosen(w, local).items()}
    g = {k: v for k, v in w.items() if k not in fresh}
    m, v = (
        {k: np.zeros_like(x) for k, x in g.items()},
        {k: np.full_like(x, 1e-6) for k, x in g.items()},
    )
    for cohort in task.rounds:
        copies, labels = [], []
        for i, (for_local, for_global) in cohort.items():
            rebuilt = moved(task, i, fresh, g, for_local, recon)
            copies.append(moved(task, i, g, rebuilt, for_global, descent))
            n = task.size(i)
            labels.append((n // 2 if n > 1 else n) if halves else n)  # support is the larger half
        average = mean(copies, labels)
        delta = {k: average[k] - g[k] for k in g}
        if yogi:  # beta1 = 0.9, beta2 = 0.99, tau = 1e-3
            m = {k: 0.9 * m[k] + 0.1 * delta[k] for k in g}
            v = {k: second_moment("yogi", v[k], delta[k] ** 2, 0.99) for k in g}
            delta = {k: m[k] / (np.sqrt(v[k]) + 1e-3) for k in g}
        g = {k: g[k] + server_lr * delta[k] for k in g}
    answers = {}
    for i in task.clients:
        rebuilt = moved(task, i, fresh, g, task.adapting[i][0], recon)
        answers[i] = logits({**g, **rebuilt}, task.test[i][0])
    return Outcome({"shared": [g]}, {}, {"personal": answers})
