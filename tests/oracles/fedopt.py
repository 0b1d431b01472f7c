"""FedAdagrad, FedYogi and FedAdam (Reddi et al., 2021), algorithm 2, with v_{-1} =
tau^2 and no bias correction.
"""

from __future__ import annotations

import numpy as np

from .plain import Array, Descent, Outcome, Task, logits, mean, on


def second_moment(kind: str, v: Array, square: Array, beta2: float) -> Array:
    if kind == "adagrad":
        return v + square
    if kind == "yogi":
        return v - (1 - beta2) * square * np.sign(v - square)
    return beta2 * v + (1 - beta2) * square


def run(
    task: Task,
    descent: Descent,
    kind: str,
    eta: float,
    beta1: float,
    tau: float,
    beta2: float = 0.0,
) -> Outcome:
    x = task.start[0]
    m = {k: np.zeros_like(value) for k, value in x.items()}
    v = {k: np.full_like(value, tau**2) for k, value in x.items()}
    for cohort in task.rounds:
        copies = [descent.run(x, batches, on(task, i)) for i, (batches,) in cohort.items()]
        average = mean(copies, [task.size(i) for i in cohort])
        delta = {k: average[k] - x[k] for k in x}
        m = {k: beta1 * m[k] + (1 - beta1) * delta[k] for k in x}
        v = {k: second_moment(kind, v[k], delta[k] ** 2, beta2) for k in x}
        x = {k: x[k] + eta * m[k] / (np.sqrt(v[k]) + tau) for k in x}
    return Outcome(
        {"model": [x]}, {}, {"personal": {i: logits(x, task.test[i][0]) for i in task.clients}}
    )
