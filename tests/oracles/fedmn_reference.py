"""What FedMN's released code does, for pools of three layers, in plain torch: a loop
over clients in turn or apart.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from .fedmn import Choices, Pool, Tensors, dense, perceptron, router
from .plain import Outcome, Task

Model = dict[str, Tensors]  # "encoder", "module.2", "output"
Noises = dict[tuple[int, int], list[Tensor]]  # (round, client) -> noise of each step


def output_gates(logits: Tensor, noise: Tensor, n: tuple[int, int, int]) -> Tensor:
    """Gumbel-softmax of the pair (-z, z), whose second part is sigmoid(2 z + noise);
    then a softmax over all gates.
    """
    soft = torch.sigmoid(2 * logits + torch.log(noise) - torch.log(1 - noise))
    edges = n[0] * n[1] + n[1] * n[2] + n[2]
    return torch.softmax(soft, 0)[edges - n[2] : edges]


def forward(model: Model, final: Tensor, x: Tensor) -> Tensor:
    """All blocks of a layer are one, so that the means inside are means of equals; the
    last one divides too often.
    """
    h = dense(model["module.2"], "1.0", perceptron(model["encoder"], "0.0", x).relu()).relu()
    out = dense(model["output"], "2", h)
    logits = torch.zeros_like(out)
    for o in final:
        logits = (logits + o * out) / final.sum()
    return logits


def run(
    task: Task,
    model: Model,
    route: Tensors,
    noises: Noises,
    last: dict[int, Tensor],
    n: tuple[int, int, int],
    lr: float,
    in_turn: bool,
) -> Outcome:
    """`in_turn`: a client goes on from where the one before it ended, and the results
    are averaged all the same.
    """
    data = [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in task.train]
    for t, cohort in enumerate(task.rounds):
        results = []
        current = model
        for i, (batches,) in cohort.items():
            if not task.size(i):
                continue
            copy = {
                name: {k: v.clone().requires_grad_() for k, v in w.items()}
                for name, w in current.items()
            }
            sgd = torch.optim.SGD([v for w in copy.values() for v in w.values()], lr)
            x, y = data[i]
            logits = router(Pool([], [], [], route, {}), x, y, Choices(lr))  # never trained
            for batch, noise in zip(batches, noises[t, i]):
                sgd.zero_grad()
                cross_entropy(
                    forward(copy, output_gates(logits, noise, n), x[batch]), y[batch]
                ).backward()
                sgd.step()
            results.append(
                {name: {k: v.detach() for k, v in w.items()} for name, w in copy.items()}
            )
            current = results[-1] if in_turn else model
        model = {
            name: {k: torch.stack([r[name][k] for r in results]).mean(0) for k in w}
            for name, w in model.items()
        }
    gates = {
        i: output_gates(router(Pool([], [], [], route, {}), *data[i], Choices(lr)), last[i], n)
        for i in task.clients
    }
    answers = {
        i: forward(model, gates[i], torch.from_numpy(task.test[i][0])).numpy() for i in task.clients
    }
    server = {name: [{k: np.asarray(v) for k, v in w.items()}] for name, w in model.items()}
    return Outcome(server, {}, {"personal": answers})
