"""FedAMP (Huang et al., 2021), algorithm 1, and its heuristic form: personal averages
by attention on the server.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .fedprox import proximal
from .plain import Array, Descent, Outcome, Params, Task, logits, mean, on

# all models as vectors -> weights [clients, clients], rows adding up to 1
Attention = Callable[[list[Array]], Array]


def vector(w: Params) -> Array:
    return np.concatenate([v.ravel() for v in w.values()])


def by_distance(models: list[Array], step_size: float, sigma: float, relative: bool) -> Array:
    """xi_ij = alpha exp(-|w_i - w_j|^2 / sigma) / sigma, at most 1 in all, and what is
    left for oneself.
    """
    count = len(models)
    apart = np.array([[((a - b) ** 2).sum() for b in models] for a in models])
    if relative and apart.any():
        apart = apart / (apart.sum() / (count * (count - 1)))
    weights = step_size * np.exp(-apart / sigma) / sigma
    for i in range(count):
        weights[i, i] = 0
        weights[i] /= max(1, weights[i].sum())
        weights[i, i] = 1 - weights[i].sum()
    return weights


def by_cosine(models: list[Array], scale: float, own: float | None) -> Array:
    """xi_ii = own; the others share the rest in proportion to exp(s cos(w_i, w_j))."""
    count = len(models)
    own = 1 / count if own is None else own
    likeness = [[a @ b / np.sqrt((a @ a) * (b @ b)) for b in models] for a in models]
    weights = np.exp(scale * np.array(likeness))
    for i in range(count):
        weights[i, i] = 0
        weights[i] *= (1 - own) / weights[i].sum()
        weights[i, i] = own
    return weights


def run(
    task: Task, descent: Descent, attention: Attention, pull: float, from_cloud: bool
) -> Outcome:
    w, trained = dict.fromkeys(task.clients, task.start[0]), set()
    for cohort in task.rounds:
        weights = attention([vector(w[i]) for i in task.clients])
        u = {i: mean([w[j] for j in task.clients], list(weights[i])) for i in cohort}
        for i, (batches,) in cohort.items():
            trained.add(i)
            new = descent.run(
                u[i] if from_cloud else w[i], batches, proximal(on(task, i), u[i], pull)
            )
            w[i] = new
    answers = {i: logits(w[i], task.test[i][0]) for i in task.clients}
    # who has no data sends nothing
    stored = [w[i] if task.size(i) else task.start[0] for i in task.clients]
    return Outcome({"cloud": stored}, {i: {"model": w[i]} for i in trained}, {"personal": answers})
