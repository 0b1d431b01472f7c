"""pFedHN (Shamsian et al., 2021), algorithm 1: a network on the server makes w_i, and
learns from w_i - w~_i.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from . import plain
from .autograd import Params, tensors
from .plain import Array, Descent, Outcome, Task, logits, on


def made(phi: Params, i: int) -> Tensor:
    """All parameters of client i's model, as a vector."""
    layers = (len(phi) - 1) // 2
    h = phi["embeddings"][i]
    for layer in range(layers):
        h = phi[f"{layer}.weight"] @ h + phi[f"{layer}.bias"]
        h = torch.relu(h) if layer < layers - 1 else h
    return h


def model(like: plain.Params, vector: Array) -> plain.Params:
    cuts = np.split(vector, np.cumsum([v.size for v in like.values()])[:-1])
    return {k: cut.reshape(v.shape) for cut, (k, v) in zip(cuts, like.items())}


def run(
    task: Task,
    descent: Descent,
    phi: plain.Params,
    lr: float,
    momentum: float,
    decay: float,
    clip: float,
) -> tuple[Params, Outcome]:
    now = {k: v.requires_grad_() for k, v in tensors(phi).items()}
    server = torch.optim.SGD(now.values(), lr, momentum, weight_decay=decay)
    for cohort in task.rounds:
        present = [i for i in cohort if task.size(i)]
        server.zero_grad()
        for i in present:
            w = made(now, i)
            before = model(task.start[0], w.detach().numpy())
            after = descent.run(before, cohort[i][0], on(task, i))
            change = torch.from_numpy(
                np.concatenate([(before[k] - after[k]).ravel() for k in before])
            )
            w.backward(change / len(present))  # adds the change times the Jacobian
        length = torch.sqrt(sum((v.grad**2).sum() for v in now.values()))
        for v in now.values():
            v.grad *= min(1.0, clip / float(length))
        server.step()
    answers = {
        i: logits(model(task.start[0], made(now, i).detach().numpy()), task.test[i][0])
        for i in task.clients
    }
    return {k: v.detach() for k, v in now.items()}, Outcome({}, {}, {"personal": answers})
