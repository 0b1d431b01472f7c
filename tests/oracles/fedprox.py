"""FedProx (Li et al., 2020), algorithm 2: the local objective is f_i(w) + mu/2 |w - w^t|^2."""

from __future__ import annotations

from .plain import Descent, Gradient, Ints, Outcome, Params, Task, logits, mean, on


def proximal(gradient: Gradient, anchor: Params, mu: float) -> Gradient:
    """The gradient of f(w) + mu/2 |w - anchor|^2."""

    def pulled(w: Params, batch: Ints) -> Params:
        g = gradient(w, batch)
        return {k: g[k] + mu * (w[k] - anchor[k]) for k in w}

    return pulled


def run(task: Task, descent: Descent, mu: float) -> Outcome:
    w = task.start[0]
    for cohort in task.rounds:
        copies = [
            descent.run(w, batches, proximal(on(task, i), w, mu))
            for i, (batches,) in cohort.items()
        ]
        w = mean(copies, [task.size(i) for i in cohort])
    return Outcome(
        {"model": [w]}, {}, {"personal": {i: logits(w, task.test[i][0]) for i in task.clients}}
    )
