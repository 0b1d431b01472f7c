"""FedEM (Marfoq et al., 2021), algorithm 1: each client is a mixture pi_i of components
theta_1 .. theta_M.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from .plain import (
    Array,
    Descent,
    Ints,
    Outcome,
    Params,
    Task,
    log_softmax,
    logits,
    losses,
    mean,
    slope,
)


def responsibilities(components: list[Params], pi: Array, x: Array, y: Ints) -> Array:
    """The E-step: q_sm proportional to pi_m exp(-loss of component m on example s)."""
    # [examples, components]
    q = np.stack([p * np.exp(-losses(logits(w, x), y)) for p, w in zip(pi, components)], 1)
    return q / q.sum(1, keepdims=True)


def weighted(x: Array, y: Ints, q: Array, w: Params, batch: Ints) -> Params:
    """The gradient of sum over the batch of q_s loss_s / |batch|."""
    return slope(w, x[batch], y[batch], q[batch])


def mixture(components: list[Params], pi: Array, x: Array) -> Array:
    """log p(y | x), p = sum_m pi_m softmax(h_m(x))."""
    return np.log(sum(p * np.exp(log_softmax(logits(w, x))) for p, w in zip(pi, components)))


def run(task: Task, descent: Descent, components: int, as_one_net: bool = False) -> Outcome:
    """`as_one_net`: the components' steps are divided by the sum of the squared pi."""
    theta = task.start[:components]
    pi = {i: np.full(components, 1 / components) for i in task.clients}
    trained = set()
    for cohort in task.rounds:
        copies: list[list[Params]] = []
        for i, (batches,) in cohort.items():
            x, y = task.train[i]
            q = responsibilities(theta, pi[i], x, y)
            pi[i] = q.mean(0) if len(y) else pi[i]
            share = q / (pi[i] ** 2).sum() if as_one_net else q
            gradients = [partial(weighted, x, y, share[:, m]) for m in range(components)]
            copies.append([descent.run(theta[m], batches, gradients[m]) for m in range(components)])
            trained.add(i)
        theta = [
            mean([c[m] for c in copies], [task.size(i) for i in cohort]) for m in range(components)
        ]
    answers = {i: mixture(theta, pi[i], task.test[i][0]) for i in task.clients}
    even = np.full(components, 1 / components)
    joined = {}
    for i in task.joining:  # a new client has the E-step for its mixture
        x, y = task.train[i]
        own = responsibilities(theta, even, x, y).mean(0) if len(y) else even
        joined[i] = mixture(theta, own, task.test[i][0])
    return Outcome(
        {"components": theta},
        {i: {"mixture": {"value": pi[i]}} for i in trained},
        {"personal": answers},
        {"personal": joined},
    )
