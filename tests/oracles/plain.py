"""What the oracles share: a network with hand-written gradients, SGD and a weighted mean, in plain
numpy.

An oracle is a paper's algorithm box as a loop that a reader can compare with the paper, line by
line. Neither this file nor the oracles know the library.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Params = dict[str, Array]  # name -> tensor
Batches = Sequence[Ints]  # positions among a client's training examples, one array a step
Gradient = Callable[[Params, Ints], Params]  # (parameters, batch) -> gradient

LAYERS = ("0", "2", "4")  # dense layers; between them, at 1 and 3, stands max(0, .)


@dataclass(frozen=True)
class Task:
    """A small federation, as an algorithm box is given it."""

    # initial models: the first for methods with one, the others for further components
    start: list[Params]
    train: list[tuple[Array, Ints]]  # client -> x [examples, features], y [examples]
    test: list[tuple[Array, Ints]]
    rounds: list[dict[int, list[Batches]]]  # round -> client of the cohort -> phase -> batches
    adapting: dict[int, list[Batches]]  # client -> phase -> batches, before the evaluation
    # the same for a client that never took part
    joining: dict[int, list[Batches]] = field(default_factory=dict)

    def size(self, client: int) -> int:
        return len(self.train[client][1])

    @property
    def clients(self) -> range:
        return range(len(self.train))


@dataclass(frozen=True)
class Outcome:
    """What there is after the last round."""

    server: dict[str, list[Params]]  # block -> slot -> parameters
    private: dict[int, dict[str, Params]]  # client that took part -> block -> parameters
    logits: dict[str, dict[int, Array]]  # view -> client -> [test examples, classes]
    # the same if the client had never taken part; empty: the oracle does not say
    joined: dict[str, dict[int, Array]] = field(default_factory=dict)


@dataclass(frozen=True)
class Descent:
    """Stochastic gradient descent with momentum and weight decay; the velocity starts
    at zero in every phase.
    """

    lr: float
    momentum: float = 0.0
    nesterov: bool = False
    decay: float = 0.0

    def run(self, start: Params, batches: Batches, gradient: Gradient) -> Params:
        now = dict(start)
        velocity = {k: np.zeros_like(v) for k, v in start.items()}
        for batch in batches:
            slope = gradient(now, batch)
            for k in start:
                g = slope[k] + self.decay * now[k]
                velocity[k] = self.momentum * velocity[k] + g
                now[k] = now[k] - self.lr * (
                    g + self.momentum * velocity[k] if self.nesterov else velocity[k]
                )
        return now


def forward(w: Params, x: Array) -> list[Array]:
    """The input of every layer, and last the logits."""
    values = [x]
    for layer in LAYERS:
        out = values[-1] @ w[f"{layer}.weight"].T + w[f"{layer}.bias"]
        values.append(out if layer == LAYERS[-1] else np.maximum(out, 0))
    return values


def logits(w: Params, x: Array) -> Array:
    return forward(w, x)[-1]  # [examples, classes]


def log_softmax(z: Array) -> Array:
    z = z - z.max(-1, keepdims=True)
    return z - np.log(np.exp(z).sum(-1, keepdims=True))


def losses(z: Array, y: Ints) -> Array:
    """Cross-entropy of each example."""
    return -log_softmax(z)[np.arange(len(y)), y]


def slope(w: Params, x: Array, y: Ints, weights: Array | None = None) -> Params:
    """Gradient of the mean over examples of weight * cross-entropy, by the chain rule
    from the last layer down.
    """
    values = forward(w, x)
    error = np.exp(log_softmax(values[-1]))
    error[np.arange(len(y)), y] -= 1
    error *= (np.ones(len(y)) if weights is None else weights)[:, None] / len(y)
    actual: Params = {}
    for layer, below in zip(reversed(LAYERS), reversed(values[:-1])):
        actual[f"{layer}.weight"] = error.T @ below
        actual[f"{layer}.bias"] = error.sum(0)
        error = (error @ w[f"{layer}.weight"]) * (below > 0)
    return actual


def mean(copies: Sequence[Params], weights: Sequence[float]) -> Params:
    """sum_i n_i w_i / sum_i n_i."""
    return {k: sum(n * c[k] for n, c in zip(weights, copies)) / sum(weights) for k in copies[0]}


def on(task: Task, client: int) -> Gradient:
    """The gradient of a client's loss on a batch of its training examples."""
    x, y = task.train[client]
    return lambda w, batch: slope(w, x[batch], y[batch])
