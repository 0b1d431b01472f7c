"""Flow (Panchal and Guan, 2022), the poster: per instance and step, between w^g and a
fresh w^l, routed by theta.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .autograd import (
    Data,
    Params,
    arrays,
    decoded,
    dense,
    descend,
    entropy,
    lstm,
    mean,
    mlp_body,
    mlp_logits,
    tensors,
    text_logits,
    words,
)
from .plain import Outcome, Task

THETA = "theta/"  # theta and w^g step together, as one dict


@dataclass(frozen=True)
class Options:
    lr: float
    theta_lr: float
    momentum: float = 0.0
    tau: float = 0.75
    own_embedding: bool = True
    mix_cell: bool = True
    reinit: bool = False  # theta is not federated
    through_mixture: bool = True  # w^g learns through w^p
    hard: bool = False  # at test
    rates: dict[str, float] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rates", {THETA: self.theta_lr, "": self.lr})


def chosen(theta: Params, seen: Tensor, o: Options, hard: bool) -> tuple[Tensor, Tensor]:
    """r^g and r^l, each [batch, 1]."""
    r = torch.softmax(dense(theta, "0", seen) / o.tau, 1)
    if hard:
        r = torch.nn.functional.one_hot(r.argmax(1), 2).double()
    return r[:, :1], r[:, 1:]


def text(w: Params, local: Params, theta: Params, x: Tensor, o: Options, hard: bool) -> Tensor:
    own = {**w, **local}
    e, own_e = words(w, x), words(own, x)
    h = torch.zeros(len(x), w["recurrent.lstm.weight_hh_l0"].shape[1], dtype=torch.float64)
    c = own_c = torch.zeros_like(h)
    out = []
    for t in range(x.shape[1]):
        rg, rl = chosen(theta, torch.cat([e[:, t], h], 1), o, hard)
        (p, q), (p2, q2) = lstm(w, e[:, t], h, c), lstm(own, own_e[:, t], h, own_c)
        h = rg * p + rl * p2
        c, own_c = (rg * q + rl * q2, rg * q + rl * q2) if o.mix_cell else (q, q2)
        out.append(decoded(w, h))
    return torch.stack(out, 1)


def image(w: Params, local: Params, theta: Params, x: Tensor, o: Options, hard: bool) -> Tensor:
    """The same with one step, for a net without recurrence."""
    rg, rl = chosen(theta, x, o, hard)
    return dense(w, "4", rg * mlp_body(w, x) + rl * mlp_body({**w, **local}, x))


@dataclass(frozen=True)
class Kind:
    """A net by hand."""

    logits: Callable[[Params, Tensor], Tensor]
    mixed: Callable[..., Tensor]
    encoder: tuple[str, ...]  # names of w^l begin so
    enc_only: tuple[str, ...]  # without the embedding


TEXT = Kind(text_logits, text, ("embedding", "recurrent"), ("recurrent",))
IMAGE = Kind(mlp_logits, image, ("0", "2"), ("0", "2"))


def tuned(w: Params, batches, data: Data, kind: Kind, o: Options) -> Params:
    """1: w^l starts as a copy of (emb^g, enc^g), and learns through dec^g."""
    names = kind.encoder if o.own_embedding else kind.enc_only
    local = {k: v for k, v in w.items() if k.startswith(names)}
    loss = lambda v, b: entropy(kind.logits({**w, **v}, data.x[b]), data.y[b])
    return descend(local, batches, loss, o.rates, o.momentum)


def theta_of(both: Params) -> Params:
    return {k.removeprefix(THETA): v for k, v in both.items() if k.startswith(THETA)}


def w_of(both: Params) -> Params:
    return {k: v for k, v in both.items() if not k.startswith(THETA)}


def together(
    w: Params, theta: Params, local: Params, batches, data: Data, kind: Kind, o: Options
) -> Params:
    """2: theta and w^g on the loss of w^p; or theta on it and then w^g on its own loss,
    batch by batch.
    """
    both = {**{THETA + k: v for k, v in theta.items()}, **w}

    def personal(v: Params, b: Tensor) -> Tensor:
        return entropy(kind.mixed(w_of(v), local, theta_of(v), data.x[b], o, False), data.y[b])

    if o.through_mixture:
        return descend(both, batches, personal, o.rates, o.momentum)
    assert o.momentum == 0  # each batch is a descent of its own here
    for b in batches:
        route, w = {k: v for k, v in both.items() if k.startswith(THETA)}, w_of(both)
        route = descend(route, [b], lambda v, b, w=w: personal({**w, **v}, b), o.rates)
        w = descend(w, [b], lambda v, b: entropy(kind.logits(v, data.x[b]), data.y[b]), o.rates)
        both = {**route, **w}
    return both


def inference(
    w: Params, theta: Params, batches, data: Data, kind: Kind, o: Options
) -> tuple[Params, Params]:
    """w^l by one epoch, then theta alone."""
    local = tuned(w, batches[0], data, kind, o)
    loss = lambda v, b: entropy(kind.mixed(w, local, v, data.x[b], o, False), data.y[b])
    return local, descend(theta, batches[1], loss, {"": o.theta_lr}, o.momentum)


def run(task: Task, theta_start: Params, kind: Kind, o: Options) -> Outcome:
    w, theta = tensors(task.start[0]), theta_start
    train = [Data.of(pair) for pair in task.train]
    for cohort in task.rounds:
        copies, sizes = [], []
        for i, (for_local, for_both) in cohort.items():
            local = tuned(w, for_local, train[i], kind, o)
            copies.append(together(w, theta, local, for_both, train[i], kind, o))
            sizes.append(task.size(i))
        both = mean(copies, sizes)
        w, theta = w_of(both), theta_start if o.reinit else theta_of(both)
    personal, shared = {}, {}
    for i in task.clients:
        x = Data.of(task.test[i]).x
        local, own = inference(w, theta, task.adapting[i], train[i], kind, o)
        personal[i], shared[i] = (
            kind.mixed(w, local, own, x, o, o.hard).numpy(),
            kind.logits(w, x).numpy(),
        )
    server = {"shared": [arrays(w)]} | ({} if o.reinit else {"router": [arrays(theta)]})
    return Outcome(server, {}, {"personal": personal, "shared": shared})
