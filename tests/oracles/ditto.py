"""Ditto (Li et al., 2021), algorithm 1: beside FedAvg, v_i minimises f_i(v) + lambda/2
|v - w^t|^2.
"""

from __future__ import annotations

from .fedprox import proximal
from .plain import Descent, Outcome, Task, logits, mean, on


def run(task: Task, descent: Descent, personal: Descent, strength: float) -> Outcome:
    w = task.start[0]
    v = dict.fromkeys(task.clients, task.start[0])
    trained = set()
    for cohort in task.rounds:
        copies = []
        for i, (own, shared) in cohort.items():
            v[i] = personal.run(v[i], own, proximal(on(task, i), w, strength))
            copies.append(descent.run(w, shared, on(task, i)))
            trained.add(i)
        w = mean(copies, [task.size(i) for i in cohort])
    views = {
        "personal": {i: logits(v[i], task.test[i][0]) for i in task.clients},
        "shared": {i: logits(w, task.test[i][0]) for i in task.clients},
    }
    new = {
        i: personal.run(task.start[0], own, proximal(on(task, i), w, strength))
        for i, (own,) in task.joining.items()
    }
    joined = {i: logits(own, task.test[i][0]) for i, own in new.items()}
    private = {i: {"personal": v[i]} for i in trained}
    return Outcome({"shared": [w]}, private, views, {**views, "personal": joined})
