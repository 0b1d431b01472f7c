"""pFedMB (Mori et al., 2022), algorithm 1: first alpha, then the branches; alpha is the softmax of
logits by default.

The gradients are the exact ones of a layer W = sum_b alpha_b W_b with G = df/dW:
df/dalpha_b = <G, W_b> and df/dW_b = alpha_b G.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .plain import (
    LAYERS,
    Array,
    Batches,
    Descent,
    Gradient,
    Ints,
    Outcome,
    Params,
    Task,
    logits,
    mean,
    on,
)

Branches = list[Params]  # branch -> tensors of every layer


def softmax(a: Array) -> Array:
    return np.exp(a) / np.exp(a).sum(-1, keepdims=True)


def part(w: Params, layer: str) -> Params:
    """The tensors of one layer."""
    return {k: v for k, v in w.items() if k.startswith(f"{layer}.")}


def merged(branches: Branches, alpha: Array) -> Params:
    """One net: each layer, bias and all, the mixture of its branches; alpha is [layers,
    branches].
    """
    row = {layer: alpha[number] for number, layer in enumerate(LAYERS)}
    return {
        k: sum(row[k.split(".")[0]][b] * w[k] for b, w in enumerate(branches)) for k in branches[0]
    }


def around_the_first(start: list[Params], count: int) -> Branches:
    """W_0 + W_b - mean of W_1 to W_B, of independent initialisations W: their even mixture
    is W_0.
    """
    middle = {k: sum(w[k] for w in start[1 : count + 1]) / count for k in start[0]}
    return [{k: start[0][k] + w[k] - middle[k] for k in w} for w in start[1 : count + 1]]


@dataclass(frozen=True)
class Alpha:
    """How alpha is learned: as the softmax of logits or on the simplex itself, for each
    layer or for all.
    """

    simplex: bool
    one: bool

    def start(self, branches: int) -> Array:
        return np.full(
            (1 if self.one else len(LAYERS), branches), 1 / branches if self.simplex else 0.0
        )

    def of(self, a: Array) -> Array:
        """[layers, branches], every row adding up to 1."""
        return np.repeat(a if self.simplex else softmax(a), len(LAYERS) // len(a), axis=0)


def nearest_on_simplex(v: Array) -> Array:
    """argmin |a - v| over a >= 0, sum a = 1, by bisection on the threshold t of a =
    max(0, v - t).
    """
    low, high = v.min() - 1, v.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(v - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(v - low, 0)


def larger(alpha: Array, least: float) -> Array:
    """Weights below `least` become 0, but for the largest of a layer; the others add up
    to 1 again.
    """
    kept = [[w if w >= least or w == max(row) else 0.0 for w in row] for row in alpha]
    return np.array([[w / sum(row) for w in row] for row in kept])


def learn_alpha(
    a: Array, branches: Branches, batches: list[Ints], gradient: Gradient, lr: float, how: Alpha
) -> Array:
    """a <- a - lr df/da; the Jacobian of the softmax is diag(alpha) - alpha alpha^T."""
    for batch in batches:
        alpha = how.of(a)
        g = gradient(merged(branches, alpha), batch)
        along = lambda w, layer, g=g: sum((v * w[k]).sum() for k, v in part(g, layer).items())
        # [layers, branches], df/dalpha
        slope = np.array([[along(w, layer) for w in branches] for layer in LAYERS])
        if not how.simplex:
            slope = alpha * (slope - (alpha * slope).sum(1, keepdims=True))
        a = a - lr * (slope.sum(0, keepdims=True) if how.one else slope)
        if how.simplex:
            a = np.array([nearest_on_simplex(row) for row in a])
    return a


def learn_branches(
    branches: Branches,
    alpha: Array,
    batches: list[Ints],
    gradient: Gradient,
    descent: Descent,
    as_one_net: bool = False,
) -> Branches:
    """All branches step at once, each along alpha_b G, or along alpha_b G / sum_b alpha_b^2: then
    a step of plain SGD moves the mixture by -lr G, as it moves one net.
    """
    shares = alpha / (alpha**2).sum(1, keepdims=True) if as_one_net else alpha
    flat = {f"{b}/{k}": v for b, w in enumerate(branches) for k, v in w.items()}

    def along(now: Params, batch: Ints) -> Params:
        w = [{k: now[f"{b}/{k}"] for k in branches[0]} for b in range(len(branches))]
        g = gradient(merged(w, alpha), batch)
        return {
            f"{b}/{k}": shares[LAYERS.index(k.split(".")[0]), b] * g[k]
            for b in range(len(w))
            for k in g
        }

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


def run(
    task: Task,
    descent: Descent,
    branches: int,
    alpha_lr: float,
    simplex: bool = False,
    one_alpha: bool = False,
    plain: bool = False,
    dropped: float = 0.0,
    literal: bool = False,
    as_one_net: bool = False,
) -> Outcome:
    """`simplex`: alpha itself is learned, and projected; `one_alpha`: for all layers; `plain`:
    averages by n_i alone; `literal`: branches are independent initialisations; `as_one_net`: the
    mixture moves as one net does.

    Each client fine-tunes on what `task.adapting` holds: alpha and weights, weights alone, or
    nothing.
    """
    how = Alpha(simplex, one_alpha)
    w = task.start[:branches] if literal else around_the_first(task.start, branches)
    a = {i: how.start(branches) for i in task.clients}
    trained = set()

    def locally(
        i: int, a: Array, for_alpha: Batches, for_weights: Batches
    ) -> tuple[Array, Branches]:
        a = learn_alpha(a, w, list(for_alpha), on(task, i), alpha_lr, how)
        return a, learn_branches(w, how.of(a), list(for_weights), on(task, i), descent, as_one_net)

    for cohort in task.rounds:
        copies = []
        for i, (for_alpha, for_weights) in cohort.items():
            a[i], copy = locally(i, a[i], for_alpha, for_weights)
            copies.append(copy)
            trained.add(i)
        relied = [np.ones((len(LAYERS), branches)) if plain else how.of(a[i]) for i in cohort]
        w = averaged(copies, relied, [task.size(i) for i in cohort])

    def answer(i: int, a: Array, for_alpha: Batches, for_weights: Batches) -> Array:
        tuned, own = locally(i, a, for_alpha, for_weights)
        return logits(merged(own, larger(how.of(tuned), dropped)), task.test[i][0])

    answers, joined = {}, {}
    for i in task.clients:
        none: list[Batches] = [[]] * (2 - len(task.adapting[i]))
        answers[i] = answer(i, a[i], *none, *task.adapting[i])
    for i, own in task.joining.items():
        joined[i] = answer(i, how.start(branches), *own, *[[]] * (2 - len(own)))
    server = {f"layers.{layer}": [part(c, layer) for c in w] for layer in LAYERS}
    private = {i: {"alpha": {"value": a[i]}} for i in trained}
    return Outcome(server, private, {"personal": answers}, {"personal": joined})
