"""pFedMe (Dinh et al., 2020), algorithm 1: K steps of theta on a batch, then w_i <- w_i
- eta lambda (w_i - theta).
"""

from __future__ import annotations

from .plain import Batches, Outcome, Params, Task, logits, mean, on


def local(
    task: Task,
    client: int,
    w: Params,
    batches: Batches,
    eta: float,
    inner_eta: float,
    strength: float,
    inner: int,
    decay: float,
) -> tuple[Params, Params]:
    """One client's round: its w_i and its personal model theta_i."""
    own, theta = dict(w), dict(w)
    for batch in batches:
        for _ in range(inner):
            g = on(task, client)(theta, batch)
            theta = {
                k: theta[k] - inner_eta * (g[k] + strength * (theta[k] - own[k]) + decay * theta[k])
                for k in theta
            }
        own = {k: own[k] - eta * strength * (own[k] - theta[k]) for k in own}
    return own, theta


def run(
    task: Task, eta: float, inner_eta: float, strength: float, inner: int, beta: float, decay: float
) -> Outcome:
    w = task.start[0]
    theta = dict.fromkeys(task.clients, task.start[0])
    trained = set()
    for cohort in task.rounds:
        copies = []
        for i, (batches,) in cohort.items():
            own, theta[i] = local(task, i, w, batches, eta, inner_eta, strength, inner, decay)
            copies.append(own)
            trained.add(i)
        average = mean(copies, [task.size(i) for i in cohort])
        w = {k: (1 - beta) * w[k] + beta * average[k] for k in w}
    views = {
        "personal": {i: logits(theta[i], task.test[i][0]) for i in task.clients},
        "shared": {i: logits(w, task.test[i][0]) for i in task.clients},
    }
    return Outcome({"shared": [w]}, {i: {"personal": theta[i]} for i in trained}, views)
