"""FedALA (Zhang et al., 2023), algorithm 1: w_i + (w - w_i) M before training, M learnt
on a part of the data.
"""

from __future__ import annotations

import numpy as np

from .plain import LAYERS, Array, Batches, Descent, Outcome, Params, Task, logits, mean, on, slope

Drawn = dict[tuple[int, int], Array]  # (round, client) -> which of its examples serve to learn M


def mixture(shared: Params, own: Params, mixing: Params) -> Params:
    return {k: own[k] + (v - own[k]) * mixing[k] if k in mixing else v for k, v in shared.items()}


def learnt(
    task: Task,
    i: int,
    shared: Params,
    own: Params,
    mixing: Params,
    batches: Batches,
    lr: float,
    drawn: Array,
):
    """M after SGD on the drawn examples of each batch, kept between 0 and 1."""
    x, y = task.train[i]
    for batch in batches:
        rows = batch[drawn[batch]]
        if len(rows):
            # by the chain rule, times w - w_i
            g = slope(mixture(shared, own, mixing), x[rows], y[rows])
            mixing = {
                k: np.clip(m - lr * g[k] * (shared[k] - own[k]), 0, 1) for k, m in mixing.items()
            }
    return mixing


def run(task: Task, descent: Descent, top: int, mixing_lr: float, drawn: Drawn) -> Outcome:
    w = task.start[0]
    ones = {k: np.ones_like(v) for k, v in w.items() if k.split(".")[0] in LAYERS[-top:]}
    own, mixing, trained = dict.fromkeys(task.clients, w), dict.fromkeys(task.clients, ones), set()
    for t, cohort in enumerate(task.rounds):
        copies = []
        for i, (learning, training) in cohort.items():
            mixing[i] = learnt(task, i, w, own[i], mixing[i], learning, mixing_lr, drawn[t, i])
            own[i] = descent.run(mixture(w, own[i], mixing[i]), training, on(task, i))
            copies.append(own[i])
            trained.add(i)
        w = mean(copies, [task.size(i) for i in cohort])
    answers = {}
    for i, (learning, _) in task.adapting.items():
        now = learnt(task, i, w, own[i], mixing[i], learning, mixing_lr, drawn[len(task.rounds), i])
        answers[i] = logits(mixture(w, own[i], now), task.test[i][0])
    views = {"personal": answers, "shared": {i: logits(w, task.test[i][0]) for i in task.clients}}
    return Outcome(
        {"model": [w]}, {i: {"local": own[i], "mixing": mixing[i]} for i in trained}, views
    )
