"""FedBABU (Oh et al., 2022), algorithm 1: the head stays as it was drawn; then clients
fine-tune for themselves.
"""

from __future__ import annotations

from .fedper import base, head
from .fedrep import body_only, head_only
from .plain import Descent, Outcome, Task, logits, mean, on


def run(task: Task, descent: Descent, tuning: Descent, tune: str) -> Outcome:
    body, fixed = base(task.start[0]), head(task.start[0])
    for cohort in task.rounds:
        copies = [
            body_only(task, descent, i, body, fixed, batches) for i, (batches,) in cohort.items()
        ]
        body = mean(copies, [task.size(i) for i in cohort])
    answers = {}
    for i, (batches,) in task.adapting.items():
        if tune == "whole":
            tuned = tuning.run({**body, **fixed}, batches, on(task, i))
        elif tune == "head":
            tuned = {**body, **head_only(task, tuning, i, body, fixed, batches)}
        else:
            tuned = {**body_only(task, tuning, i, body, fixed, batches), **fixed}
        answers[i] = logits(tuned, task.test[i][0])
    return Outcome({"body": [body]}, {}, {"personal": answers})
