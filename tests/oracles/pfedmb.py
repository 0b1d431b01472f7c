"""pFedMB (Mori et al., 2022), algorithm 1, with alpha = softmax(logits): first alpha, then the branches.

The gradients are the exact ones of a layer W = sum_b alpha_b W_b with G = df/dW:
df/dalpha_b = <G, W_b> and df/dW_b = alpha_b G.
"""

from __future__ import annotations

import numpy as np

from .plain import LAYERS, Array, Descent, Gradient, Ints, Outcome, Params, Task, logits, mean, on

Branches = list[Params]  # branch -> tensors of every layer


def softmax(a: Array) -> Array:
    return np.exp(a) / np.exp(a).sum(-1, keepdims=True)


def part(w: Params, layer: str) -> Params:
    """The tensors of one layer."""
    return {k: v for k, v in w.items() if k.startswith(f"{layer}.")}


def merged(branches: Branches, alpha: Array) -> Params:
    """One net: each layer, bias and all, the mixture of its branches; alpha is [layers, branches]."""
    row = {layer: alpha[number] for number, layer in enumerate(LAYERS)}
    return {k: sum(row[k.split(".")[0]][b] * w[k] for b, w in enumerate(branches)) for k in branches[0]}


def learn_alpha(a: Array, branches: Branches, batches: list[Ints], gradient: Gradient, lr: float) -> Array:
    """a <- a - lr df/da; the Jacobian of the softmax is diag(alpha) - alpha alpha^T."""
    for batch in batches:
        alpha = softmax(a)
        g = gradient(merged(branches, alpha), batch)
        slope = np.array(
            [[sum((v * w[k]).sum() for k, v in part(g, layer).items()) for w in branches] for layer in LAYERS]
        )  # [layers, branches], df/dalpha
        a = a - lr * alpha * (slope - (alpha * slope).sum(1, keepdims=True))
    return a


def learn_branches(
    branches: Branches, alpha: Array, batches: list[Ints], gradient: Gradient, descent: Descent
) -> Branches:
    """All branches step at once, each along alpha_b G."""
    flat = {f"{b}/{k}": v for b, w in enumerate(branches) for k, v in w.items()}

    def along(now: Params, batch: Ints) -> Params:
        w = [{k: now[f"{b}/{k}"] for k in branches[0]} for b in range(len(branches))]
        g = gradient(merged(w, alpha), batch)
        return {f"{b}/{k}": alpha[LAYERS.index(k.split(".")[0]), b] * g[k] for b in range(len(w)) for k in g}

    flat = descent.run(flat, batches, along)
    return [{k: flat[f"{b}/{k}"] for k in branches[0]} for b in range(len(branches))]


def averaged(copies: list[Branches], alphas: list[Array], sizes: list[int]) -> Branches:
    """W_lb <- sum_i n_i alpha_ilb W_ilb / sum_i n_i alpha_ilb."""
    result: Branches = []
    for b in range(len(copies[0])):
        branch: Params = {}
        for number, layer in enumerate(LAYERS):
            weights = [n * alpha[number, b] for n, alpha in zip(sizes, alphas)]
            own = [part(copy[b], layer) for copy in copies]
            branch |= mean(own, weights)
        result.append(branch)
    return result


def run(task: Task, descent: Descent, branches: int, alpha_lr: float) -> Outcome:
    w = task.start[:branches]
    a = {i: np.zeros((len(LAYERS), branches)) for i in task.clients}
    trained = set()
    for cohort in task.rounds:
        copies = []
        for i, (for_alpha, for_weights) in cohort.items():
            a[i] = learn_alpha(a[i], w, list(for_alpha), on(task, i), alpha_lr)
            copies.append(learn_branches(w, softmax(a[i]), list(for_weights), on(task, i), descent))
            trained.add(i)
        w = averaged(copies, [softmax(a[i]) for i in cohort], [task.size(i) for i in cohort])
    answers = {i: logits(merged(w, softmax(a[i])), task.test[i][0]) for i in task.clients}
    server = {f"layers.{layer}": [part(c, layer) for c in w] for layer in LAYERS}
    return Outcome(server, {i: {"alpha": {"value": a[i]}} for i in trained}, {"personal": answers})
