"""pFedMB (Mori et al., 2022), algorithm 1, as a plain PyTorch loop on any module; slopes of alpha
and of the branches by autograd.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .autograd import arrays
from .module_methods import Rate, Setting
from .modules import Loss, Weights, keys_of, mean
from .plain import Batches, Outcome


@dataclass(frozen=True)
class Branched:
    """The layers that have branches; other tensors exist once."""

    layers: Sequence[str]
    count: int

    def layer(self, name: str) -> str | None:
        return next((own for own in self.layers if name.startswith(f"{own}.")), None)

    def pack(self, copies: Sequence[Weights]) -> Weights:
        """All branches under names of their own, "1/4.weight", the rest from the first copy."""
        rest = {k: v for k, v in copies[0].items() if self.layer(k) is None}
        return rest | {
            f"{b}/{k}": v for b, w in enumerate(copies) for k, v in w.items() if self.layer(k)
        }

    def merge(self, w: Weights, alpha: Tensor) -> Weights:
        """One net; alpha is [layers, branches]."""
        merged = {k: v for k, v in w.items() if "/" not in k}
        for k, v in w.items():
            branch, _, name = k.partition("/")
            if name:
                part = alpha[self.layers.index(self.layer(name) or ""), int(branch)] * v
                merged[name] = merged[name] + part if name in merged else part
        return merged


def run(s: Setting, layers: Sequence[str], branches: int, alpha_rate: Rate) -> Outcome:
    how = Branched(layers, branches)
    w = how.pack([s.start(slot) for slot in range(branches)])
    even = torch.zeros(len(layers), branches, dtype=torch.double)
    a = dict.fromkeys(s.task.clients, even)
    seen = set()

    def locally(
        a: Tensor, for_alpha: Batches, for_weights: Batches, at: tuple[int, int, str]
    ) -> tuple[Tensor, Weights]:
        """Line 19: alpha with W fixed; line 20: W with alpha fixed."""
        place = (s.seed, *at)
        plain = s.loop.loss_on(s.train[at[1]])
        of_alpha: Loss = lambda v, b, key: plain(
            how.merge(w, torch.softmax(v["alpha"], 1)) | running(), b, key
        )
        own = replace(s.loop, momentum=0.0).descend(
            {"alpha": a}, {"alpha"}, of_alpha, for_alpha, alpha_rate(at[0]), keys_of(place, 0)
        )["alpha"]
        alpha = torch.softmax(own, 1)
        of_weights: Loss = lambda v, b, key: plain(how.merge(v, alpha), b, key)
        keys = keys_of(place, 1)
        return own, s.loop.descend(w, set(w), of_weights, for_weights, s.rate(at[0]), keys)

    def running() -> Weights:
        """Statistics to throw away: with alpha alone they do not move."""
        return {k: x.clone() for k, x in w.items() if "running" in k and "/" not in k}

    for t, cohort in enumerate(s.task.rounds):
        copies = {}
        for i, (for_alpha, for_weights) in cohort.items():
            a[i], copies[i] = locally(a[i], for_alpha, for_weights, (t, i, "train"))
            seen.add(i)
        w = averaged(how, copies, {i: torch.softmax(a[i], 1) for i in cohort}, s)

    def answers(batches: dict[int, list[Batches]], start: dict[int, Tensor], purpose: str) -> dict:
        ends = {i: locally(start[i], *own, (s.last, i, purpose)) for i, own in batches.items()}
        models = {i: how.merge(v, torch.softmax(own, 1)) for i, (own, v) in ends.items()}
        return {"personal": s.answers(models)}

    new = dict.fromkeys(s.task.clients, even)
    return Outcome(
        server_of(how, w),
        {i: {"alpha": {"value": a[i].numpy()}} for i in seen},
        answers(s.task.adapting, a, "adapt"),
        answers(s.task.joining, new, "join"),
    )


def averaged(
    how: Branched, copies: dict[int, Weights], alpha: dict[int, Tensor], s: Setting
) -> Weights:
    """Branches by n_i alpha_i, the rest by n_i."""

    def weight(i: int, name: str) -> float:
        branch, _, path = name.partition("/")
        if not path:
            return float(s.task.size(i))
        row = how.layers.index(how.layer(path) or "")
        return s.task.size(i) * float(alpha[i][row, int(branch)])

    names = next(iter(copies.values()))
    return {
        k: mean([{k: c[k]} for c in copies.values()], [weight(i, k) for i in copies])[k]
        for k in names
    }


def server_of(how: Branched, w: Weights) -> dict:
    """Blocks as the method has them: one for each layer, and the rest."""
    rest = {k: v for k, v in w.items() if "/" not in k}
    of_layer = lambda layer, b: {
        k.partition("/")[2]: v for k, v in w.items() if k.startswith(f"{b}/{layer}.")
    }
    blocks = {
        f"layers.{layer}": [arrays(of_layer(layer, b)) for b in range(how.count)]
        for layer in how.layers
    }
    return blocks | ({"rest": [arrays(rest)]} if rest else {})
