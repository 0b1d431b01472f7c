"""Methods over adapters as loops in plain numpy: W + s B A, its gradient by the chain rule, and
what each paper averages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from . import definition
from .plain import Array, Batches, Descent, Gradient, Outcome, Params, Task, logits, mean, on

TARGETS, HEAD = ("0", "2"), "4"


@dataclass(frozen=True)
class Setting:
    """A federation on adapters."""

    task: Task
    descent: Descent
    scale: float
    seed: int = 7

    @property
    def start(self) -> Params:
        return self.task.start[0]


def down(w: Params) -> Params:
    return {k: v for k, v in w.items() if k.endswith("lora_A")}


def up(w: Params) -> Params:
    return {k: v for k, v in w.items() if k.endswith("lora_B")}


def head(w: Params) -> Params:
    return {k: v for k, v in w.items() if k.startswith(f"{HEAD}.")}


def products(w: Params, scale: float) -> Params:
    """Layer -> scale * B A."""
    return {t: scale * w[f"{t}.lora_B"] @ w[f"{t}.lora_A"] for t in TARGETS}


def model(s: Setting, own: Params, *more: Params, delta: Params | None = None) -> Params:
    """The weights of the net: base, adapters, what was added to the base, and the head."""
    whole = {k: v for k, v in s.start.items() if "lora" not in k} | head(own)
    for adapter in (own, *more):
        for layer, change in products(adapter, s.scale).items():
            whole[f"{layer}.weight"] = whole[f"{layer}.weight"] + change
    for layer, change in (delta or {}).items():
        whole[f"{layer}.weight"] = whole[f"{layer}.weight"] + change
    return whole


def slope_of(s: Setting, client: int, *more: Params, delta: Params | None = None) -> Gradient:
    """d/dA = s B' G and d/dB = s G A', where G is the gradient of the layer's weights."""
    outer = on(s.task, client)

    def gradient(w: Params, batch: np.ndarray) -> Params:
        g = outer(model(s, w, *more, delta=delta), batch)
        slopes = {k: g[k] for k in head(w)}
        for t in TARGETS:
            slopes[f"{t}.lora_A"] = s.scale * w[f"{t}.lora_B"].T @ g[f"{t}.weight"]
            slopes[f"{t}.lora_B"] = s.scale * g[f"{t}.weight"] @ w[f"{t}.lora_A"].T
        return slopes

    return gradient


def train(
    s: Setting,
    own: Params,
    batches: Batches,
    gradient: Gradient,
    moves: Callable[[Params], Params] = lambda w: w,
) -> Params:
    """Descent in which only some tensors move."""
    rests = {k: v for k, v in own.items() if k not in moves(own)}
    start = {k: v for k, v in own.items() if k not in rests}
    moved = s.descent.run(start, batches, lambda w, batch: gradient({**rests, **w}, batch))
    return {**own, **moved}


def trained_tensors(s: Setting) -> Params:
    return {**down(s.start), **up(s.start), **head(s.start)}


def sizes(s: Setting, cohort: Sequence[int]) -> list[int]:
    return [s.task.size(i) for i in cohort]


def answers(s: Setting, models: Callable[[int], Params]) -> dict[int, Array]:
    return {i: logits(models(i), s.task.test[i][0]) for i in s.task.clients}


def blocks(w: Params) -> dict[str, list[Params]]:
    return {"lora.A": [down(w)], "lora.B": [up(w)], "head": [head(w)]}


def fedavg(s: Setting, moves: Callable[[int, Params], Params] = lambda t, w: w) -> Outcome:
    """FedIT; with `moves` FFA-LoRA and RoLoRA, whose resting factor nobody writes."""
    w = trained_tensors(s)
    for t, cohort in enumerate(s.task.rounds):
        copies = [
            train(s, w, batches, slope_of(s, i), lambda v, t=t: moves(t, v))
            for i, (batches,) in cohort.items()
        ]
        w = mean(copies, sizes(s, list(cohort)))
    shown = {"personal": answers(s, lambda i: model(s, w))}
    return Outcome(blocks(w), {}, shown, shown)


def ffa(s: Setting) -> Outcome:
    outcome = fedavg(s, lambda t, w: {**up(w), **head(w)})
    server = {name: slots for name, slots in outcome.server.items() if name != "lora.A"}
    return Outcome(server, {}, outcome.logits, outcome.joined)


def rolora(s: Setting) -> Outcome:
    return fedavg(s, lambda t, w: {**(up(w) if t % 2 == 0 else down(w)), **head(w)})


def fedsa(s: Setting) -> Outcome:
    shared = down(s.start)
    fresh = {**up(s.start), **head(s.start)}
    kept: dict[int, Params] = {}
    for cohort in s.task.rounds:
        copies = []
        for i, (batches,) in cohort.items():
            w = train(s, {**shared, **kept.get(i, fresh)}, batches, slope_of(s, i))
            copies.append(down(w))
            kept[i] = {**up(w), **head(w)}
        shared = mean(copies, sizes(s, list(cohort)))
    personal = answers(s, lambda i: model(s, {**shared, **kept.get(i, fresh)}))
    private = {i: {"lora.B": up(w), "head": head(w)} for i, w in kept.items()}

    def joined(i: int) -> Params:
        (batches,) = s.task.joining[i]
        start = {**shared, **fresh}
        own = lambda w: {**up(w), **head(w)}
        return model(s, train(s, start, batches, slope_of(s, i), own))

    return Outcome(
        {"lora.A": [shared]}, private, {"personal": personal}, {"personal": answers(s, joined)}
    )


def mean_product(s: Setting, copies: list[Params], weights: list[int]) -> Params:
    return mean([products(copy, s.scale) for copy in copies], weights)


def product(s: Setting, keep: str) -> Outcome:
    w = trained_tensors(s)
    delta = {t: np.zeros((len(w[f"{t}.lora_B"]), w[f"{t}.lora_A"].shape[1])) for t in TARGETS}
    for t, cohort in enumerate(s.task.rounds):
        copies = []
        for i, (batches,) in cohort.items():
            start = {**w, **fresh_adapters(s, t, i)} if keep == "stack" else w
            copies.append(train(s, start, batches, slope_of(s, i, delta=delta)))
        weights = sizes(s, list(cohort))
        exact = mean_product(s, copies, weights)
        w = mean(copies, weights)
        if keep == "svd":
            w |= best_factors(s, exact, rank=w["0.lora_A"].shape[0])
        elif keep == "stack":
            delta = {layer: delta[layer] + exact[layer] for layer in TARGETS}
        else:
            rough = products(w, s.scale)
            delta = {layer: delta[layer] + exact[layer] - rough[layer] for layer in TARGETS}
    server = blocks(w) | ({} if keep == "svd" else {"delta": [delta]})
    idle = {k: 0 * v for k, v in up(w).items()} if keep == "stack" else {}
    shown = {"personal": answers(s, lambda i: model(s, {**w, **idle}, delta=delta))}
    return Outcome(server, {}, shown, shown)


def fresh_adapters(s: Setting, t: int, client: int) -> Params:
    own: Params = {k: np.zeros_like(v) for k, v in up(s.start).items()}
    key = definition.client_key((s.seed, t, client, "train"))
    for number, (name, value) in enumerate(down(s.start).items()):
        drawn = definition.uniform(definition.fold(key, number), *value.shape)
        own[name] = (2 * drawn - 1) / np.sqrt(value.shape[1])
    return own


def best_factors(s: Setting, exact: Params, rank: int) -> Params:
    factors: Params = {}
    for layer, matrix in exact.items():
        u, values, v = np.linalg.svd(matrix / s.scale, full_matrices=False)
        for k in range(len(values)):  # of the two signs, the one that the page of the method names
            if u[np.abs(u[:, k]).argmax(), k] < 0:
                u[:, k], v[k] = -u[:, k], -v[k]
        root = np.sqrt(values[:rank])
        factors[f"{layer}.lora_A"] = root[:, None] * v[:rank]
        factors[f"{layer}.lora_B"] = u[:, :rank] * root
    return factors


def dual(s: Setting) -> Outcome:
    """FedDPA-T: one's own adapter beside the averaged one at rest, then that one alone."""
    shared = {**down(s.start), **up(s.start)}
    fresh = trained_tensors(s)
    kept: dict[int, Params] = {}
    for cohort in s.task.rounds:
        copies = []
        for i, (first, second) in cohort.items():
            kept[i] = train(s, kept.get(i, fresh), first, slope_of(s, i, shared))
            own_head = head(kept[i])
            factors = lambda w: {**down(w), **up(w)}
            copies.append(
                factors(train(s, {**shared, **own_head}, second, slope_of(s, i), factors))
            )
        shared = mean(copies, sizes(s, list(cohort)))
    own = lambda i: kept.get(i, fresh)
    views = {
        "personal": answers(s, lambda i: model(s, own(i), shared)),
        "shared": answers(s, lambda i: model(s, {**shared, **head(own(i))})),
    }
    private = {i: {"own.A": down(w), "own.B": up(w), "head": head(w)} for i, w in kept.items()}
    return Outcome({"lora.A": [down(shared)], "lora.B": [up(shared)]}, private, views)


def rest(s: Setting) -> Outcome:
    """FedALT without its gate: beside the mean of the factors of all others that have trained,
    one's own trains.
    """
    fresh = trained_tensors(s)
    slots = [{**down(fresh), **up(fresh)} for _ in s.task.clients]
    sent: set[int] = set()
    kept: dict[int, Params] = {}
    for cohort in s.task.rounds:
        new = list(slots)
        for i, (batches,) in cohort.items():
            beside = others(slots, i, sent)
            kept[i] = train(s, kept.get(i, fresh), batches, slope_of(s, i, beside))
            if s.task.size(i):
                new[i] = {**down(kept[i]), **up(kept[i])}
        slots, sent = new, sent | {i for i in cohort if s.task.size(i)}
    own = lambda i: kept.get(i, fresh)
    views = {
        "personal": answers(s, lambda i: model(s, own(i), others(slots, i, sent))),
        "shared": answers(s, lambda i: model(s, {**others(slots, i, sent), **head(own(i))})),
    }
    private = {i: {"own.A": down(w), "own.B": up(w), "head": head(w)} for i, w in kept.items()}
    server = {"lora.A": [down(w) for w in slots], "lora.B": [up(w) for w in slots]}
    return Outcome(server, private, views)


def others(slots: list[Params], client: int, sent: set[int]) -> Params:
    rest = [w for i, w in enumerate(slots) if i != client and i in sent]
    zeros = {k: 0 * v for k, v in slots[0].items()}
    return mean(rest, [1] * len(rest)) if rest else zeros
