"""FedRep (Collins et al., 2021), algorithm 1: the head on the fixed representation,
then the representation.
"""

from __future__ import annotations

from .fedper import base, head
from .plain import Batches, Descent, Outcome, Params, Task, logits, mean, on


def head_only(
    task: Task, descent: Descent, client: int, body: Params, own: Params, batches: Batches
) -> Params:
    return descent.run(own, batches, lambda h, batch: head(on(task, client)({**body, **h}, batch)))


def body_only(
    task: Task, descent: Descent, client: int, body: Params, own: Params, batches: Batches
) -> Params:
    return descent.run(body, batches, lambda b, batch: base(on(task, client)({**b, **own}, batch)))


def run(task: Task, descent: Descent) -> Outcome:
    body = base(task.start[0])
    heads = dict.fromkeys(task.clients, head(task.start[0]))
    trained = set()
    for cohort in task.rounds:
        copies = []
        for i, (first, then) in cohort.items():
            heads[i] = head_only(task, descent, i, body, heads[i], first)
            copies.append(body_only(task, descent, i, body, heads[i], then))
            trained.add(i)
        body = mean(copies, [task.size(i) for i in cohort])
    answers = {}
    for i in task.clients:
        tuned = heads[i]
        for batches in task.adapting[i]:
            tuned = head_only(task, descent, i, body, tuned, batches)
        answers[i] = logits({**body, **tuned}, task.test[i][0])
    return Outcome(
        {"body": [body]}, {i: {"head": heads[i]} for i in trained}, {"personal": answers}
    )
