"""FedAvg+ (Jiang et al., 2019): FedAvg; for its test a client fine-tunes a copy on its
training data.
"""

from __future__ import annotations

from .fedavg import rounds
from .plain import Descent, Outcome, Task, logits, on


def run(task: Task, descent: Descent, tuning: Descent) -> Outcome:
    w = rounds(task, descent)
    tuned = {i: tuning.run(w, task.adapting[i][0], on(task, i)) for i in task.clients}
    return Outcome(
        {"model": [w]},
        {},
        {"personal": {i: logits(tuned[i], task.test[i][0]) for i in task.clients}},
    )
