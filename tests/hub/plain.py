"""Federated training of a transformers model as a plain loop: the model itself, autograd, SGD."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedblocks as fb
from fedblocks.engines.batching import Draw, batches

from .conftest import texts

Tensors = dict[str, Tensor]
Logits = Callable[[Tensors, Tensor], Tensor]
SEED = 1


def logits(model: nn.Module, tensors: Tensors, rows: Tensor) -> Tensor:
    """The model called as everybody calls it, by the names of its inputs."""
    inputs = {name: torch.from_numpy(values)[rows] for name, values in texts()[0].items()}
    result: Tensor = torch.func.functional_call(model, tensors, (), inputs).logits
    return result


def descend(tensors: Tensors, of: Logits, order: list[Tensor], rate: float) -> Tensors:
    """One step of SGD on each batch of rows."""
    labels = torch.from_numpy(texts()[1])
    for rows in order:
        live = {name: value.detach().clone().requires_grad_() for name, value in tensors.items()}
        F.cross_entropy(of(live, rows), labels[rows]).backward()
        tensors = {
            name: (value if value.grad is None else value - rate * value.grad).detach()
            for name, value in live.items()
        }
    return tensors


def averaged(copies: list[Tensors], weights: list[float]) -> Tensors:
    total = sum(weights)
    return {
        name: torch.stack([w / total * copy[name] for w, copy in zip(weights, copies)]).sum(0)
        for name in copies[0]
    }


@dataclass(frozen=True)
class Course:
    """Whose rows come in which batch: the one thing that is asked of the library."""

    method: fb.Method
    data: fb.Federation

    def orders(self, round: int, client: int) -> list[list[Tensor]]:
        """The rows of every batch, phase by phase."""
        own = torch.from_numpy(self.data.train[client])
        draw = Draw(SEED, round, client, "train")
        return [
            [own[torch.from_numpy(b)] for b in batches(self.method, phase, k, len(own), draw)]
            for k, phase in enumerate(self.method.phases())
        ]


def fedavg(course: Course, model: nn.Module, shared: Tensors, rounds: int, rate: float) -> Tensors:
    of = lambda live, rows: logits(model, live, rows)
    for round in range(rounds):
        copies = [
            descend(shared, of, course.orders(round, client)[0], rate)
            for client in range(course.data.clients)
        ]
        shared = averaged(copies, course.data.train.sizes.tolist())
    return shared


def fedper(
    course: Course, model: nn.Module, start: Tensors, rounds: int, rate: float, head: str
) -> tuple[Tensors, dict[int, Tensors]]:
    """The shared body, and every client's head."""
    own = lambda tensors: {n: v for n, v in tensors.items() if n.startswith(head)}
    body = {n: v for n, v in start.items() if not n.startswith(head)}
    heads = dict.fromkeys(range(course.data.clients), own(start))
    of = lambda live, rows: logits(model, live, rows)
    for round in range(rounds):
        copies = []
        for client in heads:
            order = course.orders(round, client)[0]
            trained = descend({**body, **heads[client]}, of, order, rate)
            heads[client] = own(trained)
            copies.append({n: trained[n] for n in body})
        body = averaged(copies, course.data.train.sizes.tolist())
    return body, heads


@dataclass(frozen=True)
class Branches:
    """pFedMB's tensors: branches of some layers, alpha for each, and what is shared as it is."""

    layers: dict[str, Tensors]  # layer -> name -> [branches, ...]
    rest: Tensors

    def merged(self, alpha: Tensor) -> Tensors:
        """W_l = sum_b alpha_lb W_lb, with alpha = softmax of its logits, [layers, branches]."""
        weights = dict(zip(self.layers, torch.softmax(alpha, -1)))
        mixed = {
            name: torch.einsum("b,b...->...", weights[layer], value)
            for layer, own in self.layers.items()
            for name, value in own.items()
        }
        return {**mixed, **self.rest}

    @property
    def flat(self) -> Tensors:
        return {n: v for own in (*self.layers.values(), self.rest) for n, v in own.items()}

    def of(self, flat: Tensors) -> Branches:
        layers = {layer: {n: flat[n] for n in own} for layer, own in self.layers.items()}
        return Branches(layers, {n: flat[n] for n in self.rest})


def pfedmb(
    course: Course, model: nn.Module, shared: Branches, rounds: int, rates: tuple[float, float]
) -> tuple[Branches, dict[int, Tensor]]:
    """The branches on the server, and every client's logits of alpha."""
    count = len(next(iter(next(iter(shared.layers.values())).values())))
    alphas = {c: torch.zeros(len(shared.layers), count) for c in range(course.data.clients)}
    sizes = course.data.train.sizes.tolist()
    for round in range(rounds):
        copies = []
        for client, alpha in alphas.items():
            for_alpha, for_weights = course.orders(round, client)
            mixed = lambda live, rows, w=shared: logits(model, w.merged(live["alpha"]), rows)
            alpha = descend({"alpha": alpha}, mixed, for_alpha, rates[0])["alpha"]
            alphas[client] = alpha
            of = lambda live, rows, w=shared, a=alpha: logits(model, w.of(live).merged(a), rows)
            copies.append(shared.of(descend(shared.flat, of, for_weights, rates[1])))
        relied = [torch.softmax(alphas[c], -1) for c in alphas]  # [layers, branches] each
        layers = {
            layer: _by_reliance([c.layers[layer] for c in copies], [r[k] for r in relied], sizes)
            for k, layer in enumerate(shared.layers)
        }
        shared = Branches(layers, averaged([copy.rest for copy in copies], sizes))
    return shared, alphas


def _by_reliance(copies: list[Tensors], relied: list[Tensor], sizes: list[float]) -> Tensors:
    """Each branch averaged by n_i alpha_i."""
    weights = torch.stack([n * r for n, r in zip(sizes, relied)])  # [clients, branches]
    shares = weights / weights.sum(0)
    return {
        name: torch.einsum("cb,cb...->b...", shares, torch.stack([copy[name] for copy in copies]))
        for name in copies[0]
    }
