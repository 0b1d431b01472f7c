"""docs/randomness.md in plain Python and numpy: keys, batches, noise, cohorts. It knows nothing of
the library, so that an error in the library's own functions shows.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .plain import Array, Ints

WRAP = 2**64
FIRST, SECOND, STEP = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0x9E3779B97F4A7C15
Place = tuple[int, int, int, str]  # seed, round, client, purpose


# keys


def key(*path: int | str) -> int:
    text = "/".join(f"{'str' if isinstance(part, str) else 'int'}:{part}" for part in path)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") // 2


def generator(*path: int | str) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(key(*path)))


# who takes part


def cohort(seed: int, round: int, clients: Sequence[int], size: int) -> list[int]:
    """The clients of a round, of those that train."""
    if size == len(clients):
        return sorted(clients)
    places = generator(seed, round, "cohort").choice(len(clients), size, replace=False)
    return sorted(clients[place] for place in places)


def held_out(data_seed: int, clients: int, share: float) -> list[int]:
    """The clients that never train."""
    order = generator(data_seed, "hold_out").permutation(clients)
    return sorted(int(client) for client in order[: round(share * clients)])


# batches


@dataclass(frozen=True)
class Course:
    """How a phase goes through a client's examples."""

    epochs: int = 1
    on: str = "all"  # "support": the first half, "query": the second
    steps: int | None = None  # in the place of epochs


def examples(count: int, on: str) -> Ints:
    half = math.ceil(count / 2)
    if on == "all" or count == 1:
        return np.arange(count)
    return {"support": np.arange(count)[:half], "query": np.arange(count)[half:]}[on]


def epoch(chosen: Ints, size: int, drop_last: bool, path: tuple[int | str, ...]) -> list[Ints]:
    """The batches of one epoch."""
    order = generator(*path).permutation(chosen)
    full = len(order) // size
    cut = [order[size * b : size * (b + 1)] for b in range(full)]
    rest = order[size * full :]
    return cut if not len(rest) or (drop_last and cut) else [*cut, rest]


def batches(
    course: Course, phase: int, count: int, size: int, drop_last: bool, place: Place
) -> list[Ints]:
    """The batches of a phase: positions among the client's `count` training examples."""
    chosen = examples(count, course.on)
    if not len(chosen):
        return []
    made: list[Ints] = []
    number = 0
    while number < course.epochs if course.steps is None else len(made) < course.steps:
        made += epoch(chosen, size, drop_last, (*place, phase, number))
        number += 1
    return made if course.steps is None else made[: course.steps]


# noise


def mixed(z: int) -> int:
    z = (z ^ (z >> 30)) * FIRST % WRAP
    z = (z ^ (z >> 27)) * SECOND % WRAP
    return z ^ (z >> 31)


def fold(a_key: int, number: int) -> int:
    return mixed((a_key + (number + 1) * SECOND) % WRAP)


def uniform(a_key: int, *shape: int) -> Array:
    """Numbers between 0 and 1, row by row."""
    bits = (mixed(mixed((a_key + i * STEP) % WRAP)) for i in range(1, math.prod(shape) + 1))
    return np.array([((z >> 41) + 0.5) / 2**23 for z in bits]).reshape(shape)


def client_key(place: Place) -> int:
    return key(*place, "noise")


def step_key(place: Place, phase: int, step: int) -> int:
    """Of the step of this number, from 1, in a phase."""
    return fold(fold(client_key(place), phase), step)


def dropout(a_step_key: int, draw: int, p: float, *shape: int) -> Array:
    """What the layer that draws as the draw-th, from 1, multiplies its input with."""
    return (uniform(fold(a_step_key, draw), *shape) >= p) / (1 - p)
