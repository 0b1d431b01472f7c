"""What the oracles with routers share: plain torch in float64, slopes by autograd, and
two small nets by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from . import plain
from .plain import Batches

Params = dict[str, Tensor]
Loss = Callable[[Params, Tensor], Tensor]  # (parameters, positions of a batch) -> loss
LSTM = "recurrent.lstm."
IGNORE = -100


def tensors(w: plain.Params) -> Params:
    return {k: torch.from_numpy(np.array(v)) for k, v in w.items()}


def arrays(w: Params) -> plain.Params:
    return {k: v.numpy() for k, v in w.items()}


def descend(
    w: Params, batches: Batches, loss: Loss, rates: dict[str, float], momentum: float = 0.0
) -> Params:
    """SGD; `rates` gives the learning rate of names that begin so."""
    velocity = {k: torch.zeros_like(v) for k, v in w.items()}
    for batch in batches:
        leaves = {k: v.clone().requires_grad_() for k, v in w.items()}
        slopes = torch.autograd.grad(
            loss(leaves, torch.from_numpy(batch)), list(leaves.values()), allow_unused=True
        )
        for (k, v), slope in zip(leaves.items(), slopes):
            velocity[k] = momentum * velocity[k] + (torch.zeros_like(v) if slope is None else slope)
            rate = next(r for start, r in rates.items() if k.startswith(start))
            w = {**w, k: w[k] - rate * velocity[k]}
    return w


def mean(copies: Sequence[Params], weights: Sequence[float]) -> Params:
    return {k: sum(n * c[k] for n, c in zip(weights, copies)) / sum(weights) for k in copies[0]}


def entropy(z: Tensor, y: Tensor) -> Tensor:
    """Mean cross-entropy over the labels that are scored."""
    return F.cross_entropy(z.reshape(-1, z.shape[-1]), y.reshape(-1), ignore_index=IGNORE)


def dense(w: Params, layer: str, x: Tensor) -> Tensor:
    return x @ w[f"{layer}.weight"].T + w[f"{layer}.bias"]


def lstm(w: Params, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """One step of an LSTM."""
    gates = x @ w[f"{LSTM}weight_ih_l0"].T + w[f"{LSTM}bias_ih_l0"] + h @ w[f"{LSTM}weight_hh_l0"].T
    i, f, g, o = (gates + w[f"{LSTM}bias_hh_l0"]).chunk(4, -1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def words(w: Params, tokens: Tensor) -> Tensor:
    """Embeddings; token 0 is padding and never learns."""
    return F.embedding(tokens, w["embedding.weight"], padding_idx=0)


def decoded(w: Params, h: Tensor) -> Tensor:
    return dense(w, "words", dense(w, "projection", h))


def text_logits(w: Params, x: Tensor) -> Tensor:
    """The next-word net: [batch, steps, words]."""
    e, h = words(w, x), torch.zeros(len(x), w[f"{LSTM}weight_hh_l0"].shape[1], dtype=torch.float64)
    c, out = torch.zeros_like(h), []
    for t in range(x.shape[1]):
        h, c = lstm(w, e[:, t], h, c)
        out.append(decoded(w, h))
    return torch.stack(out, 1)


def mlp_body(w: Params, x: Tensor) -> Tensor:
    return torch.relu(dense(w, "2", torch.relu(dense(w, "0", x))))


def mlp_logits(w: Params, x: Tensor) -> Tensor:
    return dense(w, "4", mlp_body(w, x))


@dataclass(frozen=True)
class Data:
    """One client's examples as tensors."""

    x: Tensor
    y: Tensor

    @staticmethod
    def of(pair: tuple[np.ndarray, np.ndarray]) -> Data:
        return Data(torch.from_numpy(pair[0]), torch.from_numpy(pair[1]))

    def __len__(self) -> int:
        return len(self.y)
