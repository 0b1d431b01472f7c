"""FedBN (Li et al., 2021), algorithm 1: everything is averaged but the batch normalisation."""

from __future__ import annotations

import torch
from torch import Tensor

from .autograd import Data, Params, arrays, dense, descend, entropy, mean, tensors
from .plain import Outcome, Task

MOMENTUM, EPS = 0.1, 1e-5
NORM = "1."  # the names of the normalisation layer, in Linear - BatchNorm - ReLU - Linear
STATISTICS = ("1.running_mean", "1.running_var")


def logits(w: Params, x: Tensor, centre: Tensor, variance: Tensor) -> Tensor:
    h = (x @ w["0.weight"].T - centre) / torch.sqrt(variance + EPS) * w["1.weight"] + w["1.bias"]
    return dense(w, "3", torch.relu(h))


def trained(w: Params, batches: list[Tensor], data: Data, lr: float) -> Params:
    """Local SGD; running statistics move with every batch, the variance as an unbiased estimate."""
    for batch in batches:

        def loss(v: Params, rows: Tensor) -> Tensor:
            h = data.x[rows] @ v["0.weight"].T
            return entropy(logits(v, data.x[rows], h.mean(0), h.var(0, correction=0)), data.y[rows])

        h = data.x[torch.from_numpy(batch)] @ w["0.weight"].T
        seen = (h.mean(0), h.var(0, correction=1))
        moved = {k: (1 - MOMENTUM) * w[k] + MOMENTUM * s for k, s in zip(STATISTICS, seen)}
        w = {**descend(w, [batch], loss, {"": lr}), **moved}
    return w


def run(task: Task, lr: float) -> Outcome:
    start = tensors(task.start[0])
    rest = {k: v for k, v in start.items() if not k.startswith(NORM)}
    norms = {i: {k: v for k, v in start.items() if k.startswith(NORM)} for i in task.clients}
    seen = set()
    for cohort in task.rounds:
        copies = []
        for i, (batches,) in cohort.items():
            w = trained({**rest, **norms[i]}, batches, Data.of(task.train[i]), lr)
            norms[i] = {k: w[k] for k in norms[i]}
            copies.append({k: w[k] for k in rest})
            seen.add(i)
        rest = mean(copies, [task.size(i) for i in cohort])
    answers = {
        i: logits(
            {**rest, **norms[i]},
            torch.from_numpy(task.test[i][0]),
            *(norms[i][k] for k in STATISTICS),
        ).numpy()
        for i in task.clients
    }
    return Outcome(
        {"rest": [arrays(rest)]},
        {i: {"norms": arrays(norms[i])} for i in seen},
        {"personal": answers},
    )
