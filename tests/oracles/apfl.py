"""APFL (Deng et al., 2020), algorithm 1, with the current w_i in the mixture alpha v_i
+ (1 - alpha) w_i.
"""

from __future__ import annotations

import numpy as np

from .plain import Array, Batches, Ints, Outcome, Params, Task, logits, losses, mean, on


def mixture(alpha: float, v: Params, w: Params) -> Params:
    return {k: alpha * v[k] + (1 - alpha) * w[k] for k in v}


def alpha_step(
    task: Task,
    client: int,
    alpha: float,
    v: Params,
    w: Params,
    batch: Ints,
    lr: float,
    decay: float,
) -> float:
    """alpha <- clip(alpha - lr (<v - w, gradient of the mixture> + decay alpha))."""
    g = on(task, client)(mixture(alpha, v, w), batch)
    along = sum(((v[k] - w[k]) * g[k]).sum() for k in v)
    return float(np.clip(alpha - lr * (along + decay * alpha), 0, 1))


def local(
    task: Task,
    i: int,
    w: Params,
    v: Params,
    alpha: float,
    phases: list[Batches],
    adapt: str,
    lr: float,
    alpha_lr: float,
    decay: float,
) -> tuple[Params, Params, float]:
    """One client's round."""
    if adapt == "round":
        for batch in phases[0]:
            alpha = alpha_step(task, i, alpha, v, w, batch, alpha_lr, decay)
    for batch in phases[-1]:
        g = on(task, i)(w, batch)
        w = {k: w[k] - lr * g[k] for k in w}
        g = on(task, i)(mixture(alpha, v, w), batch)
        v = {k: v[k] - lr * alpha * g[k] for k in v}  # d(alpha v + (1 - alpha) w)/dv = alpha
        if adapt == "step":
            alpha = alpha_step(task, i, alpha, v, w, batch, alpha_lr, decay)
    return w, v, alpha


def run(task: Task, lr: float, alpha: float, adapt: str, alpha_lr: float, decay: float) -> Outcome:
    w = task.start[0]
    v, share = dict.fromkeys(task.clients, task.start[0]), dict.fromkeys(task.clients, alpha)
    trained = set()
    for cohort in task.rounds:
        copies = []
        for i, phases in cohort.items():
            own, v[i], share[i] = local(
                task, i, w, v[i], share[i], phases, adapt, lr, alpha_lr, decay
            )
            copies.append(own)
            trained.add(i)
        w = mean(copies, [task.size(i) for i in cohort])
    views = {
        "personal": {i: logits(mixture(share[i], v[i], w), task.test[i][0]) for i in task.clients},
        "shared": {i: logits(w, task.test[i][0]) for i in task.clients},
    }
    private = {i: {"personal": v[i], "alpha": {"value": np.array([share[i]])}} for i in trained}
    return Outcome({"shared": [w]}, private, views)


def output_mixing_slope(
    alpha: float, v: Params, w: Params, x: Array, y: Ints, step: float = 1e-6
) -> Params:
    """The gradient in v of the loss of alpha h_v(x) + (1 - alpha) h_w(x), by
    differences in every coordinate.
    """

    def loss(v: Params) -> float:
        return float(losses(alpha * logits(v, x) + (1 - alpha) * logits(w, x), y).mean())

    actual = {k: np.zeros_like(value) for k, value in v.items()}
    for k, value in v.items():
        for place in np.ndindex(value.shape):
            up, down = value.copy(), value.copy()
            up[place] += step
            down[place] -= step
            actual[k][place] = (loss({**v, k: up}) - loss({**v, k: down})) / (2 * step)
    return actual
