"""Six methods as plain PyTorch loops on any module, by the algorithm boxes of their papers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from .autograd import Data, arrays, tensors
from .modules import Loop, Weights, example_losses, keys_of, mean, pulled, token_losses
from .plain import Batches, Outcome, Task

Rate = Callable[[int], float]  # round -> learning rate


@dataclass(frozen=True)
class Setting:
    """What all of them are given."""

    task: Task
    loop: Loop
    seed: int
    rate: Rate

    @cached_property
    def train(self) -> list[Data]:
        return [Data.of(pair) for pair in self.task.train]

    @property
    def last(self) -> int:
        """The round number of an evaluation: rounds that have been."""
        return len(self.task.rounds)

    def start(self, slot: int = 0) -> Weights:
        return tensors(self.task.start[slot])

    def answer(self, w: Weights, client: int) -> Tensor:
        return self.loop.logits(w, Data.of(self.task.test[client]).x).detach()

    def answers(self, models: dict[int, Weights]) -> dict[int, object]:
        return {i: self.answer(w, i).numpy() for i, w in models.items()}

    def sizes(self, cohort: dict[int, object]) -> list[int]:
        return [self.task.size(i) for i in cohort]

    def fit(
        self,
        w: Weights,
        batches: Batches,
        at: tuple[int, int, str],  # round, client, purpose
        phase: int = 0,
        rate: Rate | None = None,
        names: set[str] | None = None,
        pull: tuple[Weights, float] | None = None,
    ) -> Weights:
        """One phase of one client."""
        round, client, purpose = at
        loss = self.loop.loss_on(self.train[client])
        loss = loss if pull is None else pulled(loss, *pull)
        keys = keys_of((self.seed, round, client, purpose), phase)
        lr = (rate or self.rate)(round)
        return self.loop.descend(w, set(w) if names is None else names, loss, batches, lr, keys)


def fedavg(s: Setting) -> Outcome:
    w = s.start()
    for t, cohort in enumerate(s.task.rounds):
        copies = [s.fit(w, batches, (t, i, "train")) for i, (batches,) in cohort.items()]
        w = mean(copies, s.sizes(cohort))
    views = {"personal": s.answers(dict.fromkeys(s.task.clients, w))}
    if any(s.task.adapting.values()):  # FedAvg+
        tuned = {i: s.fit(w, own, (s.last, i, "adapt")) for i, (own,) in s.task.adapting.items()}
        views = {"personal": s.answers(tuned)}
        return Outcome({"model": [arrays(w)]}, {}, views)
    return Outcome({"model": [arrays(w)]}, {}, views, joined=views)


def fedavg_local_statistics(s: Setting) -> Outcome:
    """Running statistics stay with their client; the server's stay as they began."""
    first = s.start()
    running = {k for k in first if "running" in k}
    w = {k: v for k, v in first.items() if k not in running}
    own = {i: {k: first[k] for k in running} for i in s.task.clients}
    seen = set()
    for t, cohort in enumerate(s.task.rounds):
        copies = []
        for i, (batches,) in cohort.items():
            copy = s.fit({**w, **own[i]}, batches, (t, i, "train"))
            own[i] = {k: copy[k] for k in running}
            copies.append({k: copy[k] for k in w})
            seen.add(i)
        w = mean(copies, s.sizes(cohort))
    private = {i: {"model/statistics": arrays(own[i])} for i in seen}
    answers = s.answers({i: {**w, **own[i]} for i in s.task.clients})
    return Outcome({"model": [arrays({**first, **w})]}, private, {"personal": answers})


def fedper(s: Setting, head: str) -> Outcome:
    first = s.start()
    top = {k for k in first if k.startswith(head)}
    body = {k: v for k, v in first.items() if k not in top}
    heads = {i: {k: first[k] for k in top} for i in s.task.clients}
    seen = set()
    for t, cohort in enumerate(s.task.rounds):
        copies = []
        for i, (batches,) in cohort.items():
            w = s.fit({**body, **heads[i]}, batches, (t, i, "train"))
            heads[i] = {k: w[k] for k in top}
            copies.append({k: w[k] for k in body})
            seen.add(i)
        body = mean(copies, s.sizes(cohort))
    new = {
        i: s.fit({**first, **body}, own, (s.last, i, "join"), names=top)
        for i, (own,) in s.task.joining.items()
    }
    answers = s.answers({i: {**body, **heads[i]} for i in s.task.clients})
    private = {i: {"head": arrays(heads[i])} for i in seen}
    return Outcome(
        {"body": [arrays(body)]}, private, {"personal": answers}, {"personal": s.answers(new)}
    )


def ditto(s: Setting, strength: float, personal: Rate) -> Outcome:
    w = s.start()
    v = dict.fromkeys(s.task.clients, w)
    seen = set()
    for t, cohort in enumerate(s.task.rounds):
        copies = []
        for i, (own, shared) in cohort.items():
            at = (t, i, "train")
            v[i] = s.fit(v[i], own, at, rate=personal, pull=(w, strength))
            copies.append(s.fit(w, shared, at, phase=1))
            seen.add(i)
        w = mean(copies, s.sizes(cohort))
    new = {
        i: s.fit(s.start(), own, (s.last, i, "join"), rate=personal, pull=(w, strength))
        for i, (own,) in s.task.joining.items()
    }
    shared = s.answers(dict.fromkeys(s.task.clients, w))
    views = {"personal": s.answers(v), "shared": shared}
    private = {i: {"personal": arrays(v[i])} for i in seen}
    joined = {"personal": s.answers(new), "shared": shared}
    return Outcome({"shared": [arrays(w)]}, private, views, joined)


def ifca(s: Setting, clusters: int) -> Outcome:
    models = [s.start(slot) for slot in range(clusters)]

    def choice(i: int) -> int:
        x, y = s.train[i].x, s.train[i].y
        return min(
            range(clusters),
            key=lambda j: (
                float(token_losses(s.loop.logits(models[j], x), y)[0].sum()) if len(y) else 0.0
            ),
        )

    for t, cohort in enumerate(s.task.rounds):
        chosen = {i: choice(i) for i in cohort}
        copies = {
            i: s.fit(models[chosen[i]], batches, (t, i, "train"))
            for i, (batches,) in cohort.items()
        }
        for j in range(clusters):
            members = [i for i in cohort if chosen[i] == j and s.task.size(i)]
            if members:
                models[j] = mean([copies[i] for i in members], s.sizes(dict.fromkeys(members)))
    views = {"personal": s.answers({i: models[choice(i)] for i in s.task.clients})}
    return Outcome({"clusters": [arrays(w) for w in models]}, {}, views, joined=views)


def fedem(s: Setting, components: int) -> Outcome:
    theta = [s.start(slot) for slot in range(components)]
    even = torch.full((components,), 1 / components, dtype=torch.double)
    pi = dict.fromkeys(s.task.clients, even)
    seen = set()

    def responsible(i: int, prior: Tensor) -> Tensor:
        x, y = s.train[i].x, s.train[i].y
        each = [example_losses(s.loop.logits(w, x), y).detach() for w in theta]
        q = prior * torch.exp(-torch.stack(each, 1))  # [examples, components]
        return q / q.sum(1, keepdim=True)

    def share(i: int, prior: Tensor) -> Tensor:
        return responsible(i, prior).mean(0) if s.task.size(i) else prior

    def weighted(i: int, q: Tensor) -> Callable[[Weights, Tensor, int], Tensor]:
        x, y = s.train[i].x, s.train[i].y
        return lambda w, b, key: (q[b] * example_losses(s.loop.logits(w, x[b], key), y[b])).mean()

    for t, cohort in enumerate(s.task.rounds):
        copies = []
        for i, (batches,) in cohort.items():
            q = responsible(i, pi[i]) if s.task.size(i) else even[None]
            pi[i] = share(i, pi[i])
            keys = keys_of((s.seed, t, i, "train"), 0)
            copies.append(
                [
                    s.loop.descend(w, set(w), weighted(i, q[:, m]), batches, s.rate(t), keys)
                    for m, w in enumerate(theta)
                ]
            )
            seen.add(i)
        theta = [mean([c[m] for c in copies], s.sizes(cohort)) for m in range(components)]

    def answer(i: int, weights: Tensor) -> object:
        p = [a * torch.softmax(s.answer(w, i), -1) for a, w in zip(weights, theta)]
        return sum(p).log().numpy()

    personal = {i: answer(i, pi[i]) for i in s.task.clients}
    new = {i: answer(i, share(i, even)) for i in s.task.joining}
    private = {i: {"mixture": {"value": pi[i].numpy()}} for i in seen}
    server = {"components": [arrays(w) for w in theta]}
    return Outcome(server, private, {"personal": personal}, {"personal": new})
