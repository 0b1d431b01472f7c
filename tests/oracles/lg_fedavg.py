"""LG-FedAvg (Liang et al., 2020), algorithm 1: local and global layers train together,
the global ones are averaged.
"""

from __future__ import annotations

from .plain import LAYERS, Descent, Outcome, Params, Task, logits, mean, on


def of(w: Params, layers: tuple[str, ...]) -> Params:
    return {k: v for k, v in w.items() if k.partition(".")[0] in layers}


def run(task: Task, descent: Descent, top_layers: int, shared: str) -> Outcome:
    halves = {"bottom": LAYERS[:-top_layers], "top": LAYERS[-top_layers:]}
    (private,) = set(halves) - {shared}
    g = of(task.start[0], halves[shared])
    own = dict.fromkeys(task.clients, of(task.start[0], halves[private]))
    trained = set()
    for cohort in task.rounds:
        copies = []
        for i, (batches,) in cohort.items():
            w = descent.run({**g, **own[i]}, batches, on(task, i))
            copies.append(of(w, halves[shared]))
            own[i] = of(w, halves[private])
            trained.add(i)
        g = mean(copies, [task.size(i) for i in cohort])
    answers = {i: logits({**g, **own[i]}, task.test[i][0]) for i in task.clients}
    return Outcome({shared: [g]}, {i: {private: own[i]} for i in trained}, {"personal": answers})
