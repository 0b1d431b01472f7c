"""Made-up data for other tasks than one class for each example: numbers, several labels, and a
label for each step. Users belong to hidden groups, in which inputs mean the same.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import torch

from fedblocks.core.options import AtLeast, Help, Positive
from fedblocks.core.random import generator
from fedblocks.core.task import Task
from fedblocks.data.options import Seed, checked
from fedblocks.data.pools import DataPool
from fedblocks.data.rows import Floats, Ints
from fedblocks.data.summary import IGNORE

Users = Annotated[int, AtLeast(1), Help("clients that there are")]
RowsEach = Annotated[int, AtLeast(1), Help("rows of each user")]
Features = Annotated[int, AtLeast(1), Help("numbers in a row")]
Groups = Annotated[int, AtLeast(1), Help("hidden groups of users")]
Unlike = Annotated[float, AtLeast(0), Help("how far groups differ; 0: not at all", usual="0.5")]


@checked
def truck_ranges(
    trucks: Users = 20,
    rows: RowsEach = 60,
    features: Features = 6,
    outputs: Annotated[int, AtLeast(1), Help("numbers to predict")] = 1,
    *,
    groups: Groups = 4,
    unlike: Unlike = 0.5,
    noise: Annotated[float, AtLeast(0), Help("standard deviation of what is added")] = 0.1,
    seed: Seed = 0,
) -> DataPool:
    """Numbers [rows, outputs] that depend on features by slopes of the truck's group, with a start
    of each truck's own: y = x (common + unlike * group) / sqrt(features) + truck + noise.
    """
    rng = generator(seed, "truck_ranges")
    user, group = _users(rng, trucks, rows, groups)
    x = rng.normal(size=(len(user), features))
    slope = _slopes(rng, groups, (features, outputs), unlike)  # [groups, features, outputs]
    start = unlike * rng.normal(size=(trucks, outputs))
    far = np.einsum("rf,rfo->ro", x, slope[group[user]]) + start[user]
    y = far + noise * rng.normal(size=far.shape)
    about = {"name": "truck_ranges", "trucks": trucks, "groups": groups, "seed": seed}
    return _pool(x, y, user, group, {**about, "unlike": unlike, "noise": noise}, Task("regression"))


@checked
def diagnoses(
    hospitals: Users = 20,
    rows: RowsEach = 60,
    features: Features = 12,
    labels: Annotated[int, AtLeast(1), Help("diagnoses that a patient may have")] = 5,
    *,
    groups: Groups = 4,
    unlike: Unlike = 0.5,
    rarity: Annotated[float, Positive(), Help("how rare the last label is", usual="1")] = 1.0,
    seed: Seed = 0,
) -> DataPool:
    """Several labels [rows, labels], 1 or 0: each is there where a direction of the hospital's
    group is above a threshold, which grows from 0 to `rarity` over the labels.
    """
    rng = generator(seed, "diagnoses")
    user, group = _users(rng, hospitals, rows, groups)
    x = rng.normal(size=(len(user), features))
    cause = _slopes(rng, groups, (features, labels), unlike)  # [groups, features, labels]
    strength = np.einsum("rf,rfo->ro", x, cause[group[user]])
    y = strength > np.linspace(0, rarity, labels)
    about = {"name": "diagnoses", "hospitals": hospitals, "groups": groups, "seed": seed}
    about |= {"unlike": unlike, "rarity": rarity}
    return _pool(x, y, user, group, about, Task("multi-label"))


@checked
def tagged_words(
    writers: Users = 20,
    rows: RowsEach = 30,
    steps: Annotated[int, AtLeast(1), Help("words of a sequence, at most")] = 12,
    vocabulary: Annotated[int, AtLeast(2), Help("words that there are, with padding")] = 40,
    tags: Annotated[int, AtLeast(2), Help("labels of a word")] = 5,
    *,
    groups: Groups = 4,
    seed: Seed = 0,
) -> DataPool:
    """Sequences of words [rows, steps] with a tag for each: that of the word itself, and after a
    word of the group's own half the next one in turn. Sequences are padded with word 0.
    """
    rng = generator(seed, "tagged_words")
    user, group = _users(rng, writers, rows, groups)
    words = rng.integers(1, vocabulary, (len(user), steps))
    own_tag = rng.integers(0, tags, vocabulary)
    turns = rng.random((groups, vocabulary)) < 0.5  # words after which the tag is the next one
    before = np.concatenate([np.zeros((len(user), 1), np.int64), words[:, :-1]], 1)
    y = (own_tag[words] + turns[group[user][:, None], before]) % tags
    length = rng.integers(max(1, steps // 2), steps + 1, len(user))
    padding = np.arange(steps) >= length[:, None]
    about = {"name": "tagged_words", "writers": writers, "groups": groups, "seed": seed}
    about |= {"vocabulary_size": vocabulary}
    x, y = np.where(padding, 0, words), np.where(padding, IGNORE, y)
    return DataPool(
        torch.from_numpy(x),
        torch.from_numpy(y),
        tags,
        users=user,
        topics=group,
        about=about,
        task=Task("sequence-labelling"),
    )


def _users(rng: np.random.Generator, users: int, rows: int, groups: int) -> tuple[Ints, Ints]:
    """The user of each row, and the group of each user."""
    return np.repeat(np.arange(users), rows), rng.permutation(np.arange(users) % groups)


def _slopes(rng: np.random.Generator, groups: int, shape: tuple[int, int], unlike: float) -> Floats:
    """What all groups have in common and what each has for itself: [groups, features, outputs]."""
    all_alike, own = rng.normal(size=shape), rng.normal(size=(groups, *shape))
    slopes: Floats = (all_alike + unlike * own) / np.sqrt(shape[0])
    return slopes


def _pool(
    x: Floats, y: Any, user: Ints, group: Ints, about: dict[str, Any], task: Task
) -> DataPool:
    inputs, targets = (torch.from_numpy(values.astype(np.float32)) for values in (x, y))
    return DataPool(
        inputs, targets, targets.shape[1], users=user, topics=group, about=about, task=task
    )
