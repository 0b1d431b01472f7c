"""Mean-regularised multi-task learning (Evgeniou and Pontil, 2004), one stretch of SGD on each task
in turn: min over all w_i of sum_i f_i(w_i) + mu/2 |w_i - mean of the w_j|^2, with the mean of the
round before.
"""

from __future__ import annotations

from .fedprox import proximal
from .plain import Descent, Outcome, Task, logits, mean, on


def run(task: Task, descent: Descent, mu: float) -> Outcome:
    anchor = task.start[0]
    w = dict.fromkeys(task.clients, task.start[0])
    trained = set()
    for cohort in task.rounds:
        for i, (batches,) in cohort.items():
            w[i] = descent.run(w[i], batches, proximal(on(task, i), anchor, mu))
            trained.add(i)
        anchor = mean([w[i] for i in cohort], [task.size(i) for i in cohort])
    answers = {i: logits(w[i], task.test[i][0]) for i in task.clients}
    return Outcome({"mean": [anchor]}, {i: {"model": w[i]} for i in trained}, {"personal": answers})
