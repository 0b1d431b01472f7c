"""Local: each client trains the common initial model on its own data."""

from __future__ import annotations

from .plain import Descent, Outcome, Task, logits, on


def run(task: Task, descent: Descent) -> Outcome:
    models = dict.fromkeys(task.clients, task.start[0])
    trained = set()
    for cohort in task.rounds:
        for i, (batches,) in cohort.items():
            models[i] = descent.run(models[i], batches, on(task, i))
            trained.add(i)
    answers = {i: logits(models[i], task.test[i][0]) for i in task.clients}
    return Outcome({}, {i: {"model": models[i]} for i in trained}, {"personal": answers})
