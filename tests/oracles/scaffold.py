"""SCAFFOLD (Karimireddy et al., 2020), algorithm 1 with option II: y <- y - eta (g(y) -
c_i + c).
"""

from __future__ import annotations

import numpy as np

from .module_methods import Rate
from .plain import Outcome, Task, logits, mean, on


def run(task: Task, rate: Rate, server_lr: float, by_examples: bool) -> Outcome:
    x = task.start[0]
    zeros = {k: np.zeros_like(v) for k, v in x.items()}
    c, own, trained = zeros, dict.fromkeys(task.clients, zeros), set()
    for t, cohort in enumerate(task.rounds):
        lr = rate(t)
        copies, changes, weights = [], [], []
        for i, (batches,) in cohort.items():
            trained.add(i)
            if not batches:
                continue
            y = dict(x)
            for batch in batches:
                g = on(task, i)(y, batch)
                y = {k: y[k] - lr * (g[k] - own[i][k] + c[k]) for k in y}
            new = {k: own[i][k] - c[k] + (x[k] - y[k]) / (len(batches) * lr) for k in x}
            copies.append(y)
            changes.append({k: new[k] - own[i][k] for k in x})
            weights.append(task.size(i) if by_examples else 1)
            own[i] = new
        y, change = mean(copies, weights), mean(changes, weights)
        x = {k: x[k] + server_lr * (y[k] - x[k]) for k in x}
        c = {k: c[k] + len(copies) / len(task.clients) * change[k] for k in x}
    answers = {i: logits(x, task.test[i][0]) for i in task.clients}
    return Outcome(
        {"model": [x], "control": [c]}, {i: {"own": own[i]} for i in trained}, {"personal": answers}
    )
