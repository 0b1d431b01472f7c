"""FedPer (Arivazhagan et al., 2019), algorithms 1 and 2: the base is averaged, the last
layer stays.
"""

from __future__ import annotations

from .plain import LAYERS, Descent, Outcome, Params, Task, logits, mean, on

HEAD = f"{LAYERS[-1]}."


def base(w: Params) -> Params:
    return {k: v for k, v in w.items() if not k.startswith(HEAD)}


def head(w: Params) -> Params:
    return {k: v for k, v in w.items() if k.startswith(HEAD)}


def run(task: Task, descent: Descent) -> Outcome:
    shared = base(task.start[0])
    heads = dict.fromkeys(task.clients, head(task.start[0]))
    trained = set()
    for cohort in task.rounds:
        copies = []
        for i, (batches,) in cohort.items():
            w = descent.run({**shared, **heads[i]}, batches, on(task, i))
            copies.append(base(w))
            heads[i] = head(w)
            trained.add(i)
        shared = mean(copies, [task.size(i) for i in cohort])
    answers = {i: logits({**shared, **heads[i]}, task.test[i][0]) for i in task.clients}
    private = {i: {"head": heads[i]} for i in trained}
    joined = {
        i: logits(fitted(shared, head(task.start[0]), task, i, descent), task.test[i][0])
        for i in task.joining
    }
    return Outcome({"body": [shared]}, private, {"personal": answers}, {"personal": joined})


def fitted(shared: Params, own: Params, task: Task, client: int, descent: Descent) -> Params:
    """A new client trains its head under a body that stays."""
    (batches,) = task.joining[client]
    slope = on(task, client)
    own = descent.run(own, batches, lambda v, batch: head(slope({**shared, **v}, batch)))
    return {**shared, **own}
