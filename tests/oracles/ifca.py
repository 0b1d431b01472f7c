"""IFCA (Ghosh et al., 2020), algorithm 1, option II (model averaging), weighted by examples."""

from __future__ import annotations

import numpy as np

from .modfl import clusters as cluster
from .modfl import flat
from .plain import Batches, Descent, Outcome, Params, Task, logits, losses, mean, on


def choice(models: list[Params], task: Task, client: int) -> int:
    """The model with the lowest loss on the client's training data; the first if it has none."""
    x, y = task.train[client]
    return int(np.argmin([losses(logits(w, x), y).sum() for w in models]))


def run(task: Task, descent: Descent, clusters: int) -> Outcome:
    return follow(task, descent, task.start[:clusters], task.rounds)


def run_from_updates(task: Task, descent: Descent, clusters: int) -> Outcome:
    """One round of FedAvg; clients whose changes are alike begin one model each, of their mean."""
    first, *others = task.rounds
    common = task.start[0]
    copies = {
        i: descent.run(common, batches, on(task, i))
        for i, (batches,) in first.items()
        if task.size(i)
    }
    group = cluster({i: flat(w) - flat(common) for i, w in copies.items()}, clusters, task)
    models = averages(copies, group, task, task.start[:clusters])
    outcome = follow(task, descent, models, others)
    return Outcome(
        {**outcome.server, "begun": [{"value": np.array(float(clusters))}]}, {}, outcome.logits
    )


def follow(
    task: Task, descent: Descent, models: list[Params], rounds: list[dict[int, list[Batches]]]
) -> Outcome:
    for cohort in rounds:
        chosen = {i: choice(models, task, i) for i in cohort}
        copies = {
            i: descent.run(models[chosen[i]], batches, on(task, i))
            for i, (batches,) in cohort.items()
        }
        models = averages(copies, chosen, task, models)
    answers = {i: logits(models[choice(models, task, i)], task.test[i][0]) for i in task.clients}
    views = {"personal": answers}
    return Outcome({"clusters": models}, {}, views, joined=views)  # a new client chooses, too


def averages(
    copies: dict[int, Params], chosen: dict[int, int], task: Task, models: list[Params]
) -> list[Params]:
    """theta_j <- mean over clients with s_ij = 1, by examples; what nobody chose stays."""
    members = [[i for i in copies if chosen[i] == j and task.size(i)] for j in range(len(models))]
    return [
        mean([copies[i] for i in group], [task.size(i) for i in group]) if group else old
        for group, old in zip(members, models)
    ]
