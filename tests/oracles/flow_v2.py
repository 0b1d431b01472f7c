"""Flow (Panchal et al., 2023) as its text means it: a route for every layer, held-out
halves, hard routes at test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .autograd import (
    Data,
    Params,
    arrays,
    dense,
    descend,
    entropy,
    lstm,
    mean,
    mlp_logits,
    tensors,
    text_logits,
    words,
)
from .plain import Batches, Ints, Outcome, Task

Policies = dict[str, Params]  # block -> parameters
# logits, and p_global of all routes that count: [number]
Routed = Callable[..., tuple[Tensor, Tensor]]


def policy(w: Params, x: Tensor, segments: tuple[int, ...], hard: bool) -> list[Tensor]:
    """A perceptron with an exit for each layer; `segments` says how many hidden layers
    come before each exit.
    """
    actual = []
    for s, hidden in enumerate(segments):
        for k in range(hidden):
            x = torch.relu(dense(w, f"trunk.{s}.{3 * k}", x))
        r = torch.softmax(dense(w, f"exits.{s}", x), -1)
        actual.append(torch.nn.functional.one_hot(r.argmax(-1), 2).double() if hard else r)
    return actual


def mixed(r: Tensor, shared: Tensor, local: Tensor) -> Tensor:
    return r[..., :1] * shared + r[..., 1:] * local


def image(
    w: Params, local: Params, policies: Policies, x: Tensor, hard: bool
) -> tuple[Tensor, Tensor]:
    """Three dense layers; the policy has the hidden layers (9, 8), so that its last
    exit shares the second one.
    """
    routes = policy(policies["policy"], x, (1, 1, 0), hard)
    h = torch.relu(mixed(routes[0], dense(w, "0", x), dense(local, "0", x)))
    h = torch.relu(mixed(routes[1], dense(w, "2", h), dense(local, "2", h)))
    logits = mixed(routes[2], dense(w, "4", h), dense(local, "4", h))
    return logits, torch.cat([r[:, 0] for r in routes])


def text(
    w: Params, local: Params, policies: Policies, x: Tensor, hard: bool
) -> tuple[Tensor, Tensor]:
    """The shared LSTM goes on from the mixed state, the local one from its own; then
    two dense layers.
    """
    e, own_e = words(w, x), words(local, x)
    h = torch.zeros(len(x), w["recurrent.lstm.weight_hh_l0"].shape[1], dtype=torch.float64)
    c = own_h = own_c = torch.zeros_like(h)
    out, routes = [], []
    for t in range(x.shape[1]):
        (p, q), (own_h, own_c) = lstm(w, e[:, t], h, c), lstm(local, own_e[:, t], own_h, own_c)
        (r,) = policy(policies["policy"], torch.cat([e[:, t], p, own_h], 1), (2,), hard)
        h, c = mixed(r, p, own_h), mixed(r, q, own_c)
        a, b = dense(w, "projection", h), dense(local, "projection", h)
        first, second = policy(policies["dense_policy"], torch.cat([a, b], 1), (2, 1), hard)
        z = mixed(first, a, b)
        out.append(mixed(second, dense(w, "words", z), dense(local, "words", z)))
        real = x[:, t] != 0
        routes += [actual[real, 0] for actual in (r, first, second)]
    return torch.stack(out, 1), torch.cat(routes)


@dataclass(frozen=True)
class Kind:
    logits: Callable[[Params, Tensor], Tensor]
    routed: Routed


IMAGE, TEXT = Kind(mlp_logits, image), Kind(text_logits, text)


def tuned(w: Params, batches: Batches, data: Data, kind: Kind, lr: float) -> Params:
    """The local path only, from a copy of the shared net."""
    return descend(w, batches, lambda v, b: entropy(kind.logits(v, data.x[b]), data.y[b]), {"": lr})


def policy_step(
    policies: Policies,
    w: Params,
    local: Params,
    b: Ints,
    data: Data,
    kind: Kind,
    lr: float,
    lam: float,
) -> Policies:
    """CE(personalised) + lambda mean(-log(p_global^2 + 1e-6))."""
    flat = {f"{n}/{k}": v for n, p in policies.items() for k, v in p.items()}
    split = lambda v: {
        n: {k.removeprefix(f"{n}/"): t for k, t in v.items() if k.startswith(f"{n}/")}
        for n in policies
    }

    def loss(v: Params, b: Tensor) -> Tensor:
        logits, p = kind.routed(w, local, split(v), data.x[b], False)
        return entropy(logits, data.y[b]) + lam * (-torch.log(p**2 + 1e-6)).mean()

    return split(descend(flat, [b], loss, {"": lr}))


def local_round(
    w: Params, policies: Policies, batches, data: Data, kind: Kind, lr: float, lam: float
):
    local = tuned(w, batches[0], data, kind, lr)
    for b in batches[1]:  # on the other half: (i) the policy, (ii) the shared path alone
        policies = policy_step(policies, w, local, b, data, kind, lr, lam)
        w = descend(w, [b], lambda v, b: entropy(kind.logits(v, data.x[b]), data.y[b]), {"": lr})
    return w, policies


def run(task: Task, policies: Policies, kind: Kind, lr: float, lam: float, hard: bool) -> Outcome:
    w, train = tensors(task.start[0]), [Data.of(pair) for pair in task.train]
    for cohort in task.rounds:
        actual = [
            local_round(w, policies, batches, train[i], kind, lr, lam)
            for i, batches in cohort.items()
        ]
        sizes = [task.size(i) for i in cohort]
        w = mean([own for own, _ in actual], sizes)
        policies = {n: mean([own[n] for _, own in actual], sizes) for n in policies}
    personal, shared = {}, {}
    for i in task.clients:
        x, own = Data.of(task.test[i]).x, policies
        local = tuned(w, task.adapting[i][0], train[i], kind, lr)
        for b in task.adapting[i][1]:
            own = policy_step(own, w, local, b, train[i], kind, lr, lam)
        personal[i], shared[i] = (
            kind.routed(w, local, own, x, hard)[0].numpy(),
            kind.logits(w, x).numpy(),
        )
    server = {"shared": [arrays(w)], **{n: [arrays(p)] for n, p in policies.items()}}
    return Outcome(server, {}, {"personal": personal, "shared": shared})
