"""MOON (Li et al., 2021), algorithm 1: cross-entropy + mu contrast of features between models."""

from __future__ import annotations

import torch
from torch import Tensor

from .autograd import Data, Params, arrays, descend, entropy, mean, mlp_body, mlp_logits, tensors
from .plain import Outcome, Task


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))


def contrast(w: Params, sent: Params, previous: Params, x: Tensor, temperature: float) -> Tensor:
    """Mean of -log of e^(sim(z, z_sent)/T) / (e^(sim(z, z_sent)/T) + e^(sim(z, z_previous)/T))."""
    z = mlp_body(w, x)
    near, far = (
        torch.exp(cosine(z, mlp_body(other, x)) / temperature) for other in (sent, previous)
    )
    return -torch.log(near / (near + far)).mean()


def run(task: Task, lr: float, momentum: float, strength: float, temperature: float) -> Outcome:
    start = tensors(task.start[0])
    w, previous, trained = start, dict.fromkeys(task.clients, start), set()
    for cohort in task.rounds:
        copies = []
        for i, (batches,) in cohort.items():
            data = Data.of(task.train[i])

            def loss(
                v: Params,
                batch: Tensor,
                w: Params = w,
                old: Params = previous[i],
                data: Data = data,
            ) -> Tensor:
                x = data.x[batch]
                return entropy(mlp_logits(v, x), data.y[batch]) + strength * contrast(
                    v, w, old, x, temperature
                )

            previous[i] = descend(w, batches, loss, {"": lr}, momentum)
            copies.append(previous[i])
            trained.add(i)
        w = mean(copies, [task.size(i) for i in cohort])
    answers = {i: mlp_logits(w, torch.from_numpy(task.test[i][0])).numpy() for i in task.clients}
    private = {i: {"previous": arrays(previous[i])} for i in trained}
    return Outcome({"model": [arrays(w)]}, private, {"personal": answers})
