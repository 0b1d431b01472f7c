"""Made-up data for tests and benchmarks: features, signals and token streams, each with
a known structure.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import numpy.typing as npt
import torch

from fedblocks.core.errors import DataError
from fedblocks.core.options import AtLeast, Help, Positive
from fedblocks.core.random import generator
from fedblocks.data.options import Seed, checked
from fedblocks.data.partition import positive
from fedblocks.data.pools import DataPool
from fedblocks.data.rows import Floats, Ints
from fedblocks.data.summary import IGNORE


@checked
def gaussian(
    rows: Annotated[int, AtLeast(1), Help("rows in all")] = 1000,
    classes: Annotated[int, AtLeast(1), Help("clouds of points")] = 10,
    features: Annotated[int, AtLeast(1), Help("numbers in a row")] = 20,
    spread: Annotated[float, Positive(), Help("width of a cloud")] = 1.0,
    seed: Seed = 0,
) -> DataPool:
    """Features [rows, features]: a cloud of width `spread` around a centre per class."""
    rng = generator(seed, "gaussian")
    y = rng.permutation(np.arange(rows) % classes)
    centres = rng.normal(size=(classes, features))
    x = centres[y] + spread * rng.normal(size=(rows, features))
    about = {"name": "gaussian", "rows": rows, "features": features, "spread": spread, "seed": seed}
    return DataPool(
        torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y), classes, about=about
    )


@checked
def waves(
    rows: Annotated[int, AtLeast(1), Help("rows in all")] = 600,
    classes: Annotated[int, AtLeast(1), Help("frequencies")] = 6,
    channels: Annotated[int, AtLeast(1), Help("of a signal")] = 3,
    steps: Annotated[int, AtLeast(1), Help("time steps of a signal")] = 64,
    noise: Annotated[float, AtLeast(0), Help("standard deviation of what is added")] = 0.3,
    seed: Seed = 0,
) -> DataPool:
    """Signals [rows, channels, steps]: sine waves of a frequency per class, at random phases."""
    rng = generator(seed, "waves")
    y = rng.permutation(np.arange(rows) % classes)
    phase = rng.uniform(0, 2 * np.pi, (rows, channels, 1))
    time = np.arange(steps) / steps
    wave = np.sin(2 * np.pi * (1 + y)[:, None, None] * time + phase)
    x = wave + noise * rng.normal(size=wave.shape)  # [rows, channels, steps]
    about = {
        "name": "waves",
        "rows": rows,
        "channels": channels,
        "steps": steps,
        "noise": noise,
        "seed": seed,
    }
    return DataPool(
        torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y), classes, about=about
    )


@checked
def markov(
    users: Annotated[int, AtLeast(1), Help("who write")] = 20,
    rows: Annotated[int, AtLeast(1), Help("sequences per user")] = 16,
    steps: Annotated[int, AtLeast(1), Help("tokens of a sequence")] = 20,
    vocabulary: Annotated[int, AtLeast(1), Help("tokens that there are")] = 50,
    topics: Annotated[int, AtLeast(1), Help("Markov chains, one for each user")] = 4,
    seed: Seed = 0,
) -> DataPool:
    """Token sequences [rows, steps] of users who each write on one topic, a topic being
    a Markov chain of its own.
    """
    rng = generator(seed, "markov")
    topic = rng.permutation(np.arange(users) % topics)  # [users]
    chains = rng.dirichlet(np.full(vocabulary, 0.1), (topics, vocabulary))  # [topics, from, to]
    user = np.repeat(np.arange(users), rows)
    tokens = walk(rng, chains, topic[user], steps + 1)
    # scored steps; the rest is padding
    length = rng.integers(max(1, steps // 2), steps + 1, len(user))
    padding = np.arange(steps) >= length[:, None]
    x = np.where(padding, 0, tokens[:, :-1])
    y = np.where(padding, IGNORE, tokens[:, 1:])
    about = {"name": "markov", "users": users, "steps": steps, "topics": topics, "seed": seed}
    return DataPool(
        torch.from_numpy(x), torch.from_numpy(y), vocabulary, users=user, topics=topic, about=about
    )


def walk(rng: np.random.Generator, chains: Floats, topic: Ints, steps: int) -> Ints:
    """One path of `steps` tokens per entry of `topic` through that topic's chain."""
    edges = np.cumsum(chains, -1)
    tokens = np.zeros((len(topic), steps), np.int64)
    tokens[:, 0] = rng.integers(0, chains.shape[-1], len(topic))
    for step in range(1, steps):
        row = edges[topic, tokens[:, step - 1]]  # [sequences, vocabulary]
        tokens[:, step] = (row < rng.random(len(topic))[:, None] * row[:, -1:]).sum(-1)
    return tokens


def next_token_windows(stream: npt.ArrayLike, steps: int, padding: int = 0) -> tuple[Ints, Ints]:
    """Cut one long stream of tokens into windows [windows, steps] and the tokens that
    come next, padded at the end.
    """
    tokens = np.asarray(stream, dtype=np.int64)
    if tokens.ndim != 1 or len(tokens) < 2:
        raise DataError(
            f"a stream of shape {list(tokens.shape)}", "give at least two tokens in one row"
        )
    positive(steps=steps)
    missing = -(len(tokens) - 1) % steps
    x = np.concatenate([tokens[:-1], np.full(missing, padding)])
    y = np.concatenate([tokens[1:], np.full(missing, IGNORE)])
    return x.reshape(-1, steps), y.reshape(-1, steps)
