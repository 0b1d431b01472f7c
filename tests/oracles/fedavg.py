"""FedAvg (McMahan et al., 2017), algorithm 1."""

from __future__ import annotations

from .plain import Descent, Outcome, Params, Task, logits, mean, on


def rounds(task: Task, descent: Descent) -> Params:
    """w <- sum_i n_i w_i / sum_i n_i over the cohort, where w_i is w after local epochs."""
    w = task.start[0]
    for cohort in task.rounds:
        copies = [descent.run(w, batches, on(task, i)) for i, (batches,) in cohort.items()]
        w = mean(copies, [task.size(i) for i in cohort])
    return w


def run(task: Task, descent: Descent) -> Outcome:
    w = rounds(task, descent)
    answers = {"personal": {i: logits(w, task.test[i][0]) for i in task.clients}}
    return Outcome({"model": [w]}, {}, answers, joined=answers)  # a new client is like any other
