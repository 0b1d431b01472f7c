"""IFCA (Ghosh et al., 2020), algorithm 1, option II (model averaging), weighted by examples."""

from __future__ import annotations

import numpy as np

from .plain import Descent, Outcome, Params, Task, logits, losses, mean, on


def choice(models: list[Params], task: Task, client: int) -> int:
    """The model with the lowest loss on the client's training data; the first if it has none."""
    x, y = task.train[client]
    return int(np.argmin([losses(logits(w, x), y).sum() for w in models]))


def run(task: Task, descent: Descent, clusters: int) -> Outcome:
    models = task.start[:clusters]
    for cohort in task.rounds:
        chosen = {i: choice(models, task, i) for i in cohort}
        copies = {
            i: descent.run(models[chosen[i]], batches, on(task, i))
            for i, (batches,) in cohort.items()
        }
        members = [[i for i in cohort if chosen[i] == j and task.size(i)] for j in range(clusters)]
        models = [
            mean([copies[i] for i in group], [task.size(i) for i in group]) if group else old
            for group, old in zip(members, models)
        ]
    answers = {i: logits(models[choice(models, task, i)], task.test[i][0]) for i in task.clients}
    views = {"personal": answers}
    return Outcome({"clusters": models}, {}, views, joined=views)  # a new client chooses, too
