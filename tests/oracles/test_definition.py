"""The library's batches, keys and noise are those of docs/randomness.md, number by number."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from fedblocks.core.phases import Phase
from fedblocks.core.random import derive, fold, uniform
from fedblocks.engines.batching import Draw, batches
from fedblocks.methods.fedavg import FedAvg

from . import definition
from .definition import Course
from .harness import SEED, mlp_net

HERE = Path(__file__).parent
# what runs the library for the oracles
HARNESS = {"harness.py", "longer.py", "texts.py"}


@pytest.mark.parametrize("on", ["all", "support", "query"])
@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_are_those_of_the_definition(on: str, drop_last: bool) -> None:
    method = FedAvg(mlp_net(), batch_size=4, drop_last=drop_last)
    courses = [Course(3, on), Course(0, on), Course(1, on, steps=5), Course(1, on, steps=1)]
    places = [(SEED, 0, 0, "train"), (SEED, 3, 11, "adapt"), (8, 3, 11, "join")]
    for course, phase, count, place in product(courses, (0, 2), range(14), places):
        update = (method.step("model"),)
        found = batches(
            method, Phase(update, course.epochs, on, course.steps), phase, count, Draw(*place)
        )
        expected = definition.batches(course, phase, count, 4, drop_last, place)
        assert [own.tolist() for own in found] == [own.tolist() for own in expected]


def test_noise_is_that_of_the_definition() -> None:
    numbers = np.random.Generator(np.random.PCG64(3)).integers(0, 2**62, 20).tolist()
    for key, number in product(numbers, (0, 1, 7, 2**20, 2**22)):
        folded = fold(torch.tensor(key), number)
        assert folded.item() % 2**64 == definition.fold(key, number)
        signed = definition.fold(key, number)
        assert np.array_equal(uniform(folded, (3, 2)).numpy(), definition.uniform(signed, 3, 2))


def test_keys_are_those_of_the_definition() -> None:
    assert definition.key(7, "init", 0) == 4195604927878129879  # the example of the page
    page = (HERE.parents[1] / "docs" / "randomness.md").read_text()
    assert "it is 4195604927878129879" in page
    for path in product((0, 7), (0, 3), (0, 12), ("train", "join"), ("noise", 0, 2)):
        assert derive(*path) == definition.key(*path)


def test_an_epoch_sees_every_example_once_and_epochs_differ() -> None:
    drawn = definition.batches(Course(2), 0, 23, 8, False, (SEED, 0, 0, "train"))
    first, second = np.concatenate(drawn[:3]), np.concatenate(drawn[3:])
    assert sorted(first) == sorted(second) == list(range(23)) and list(first) != list(second)


def test_oracles_do_not_know_the_library() -> None:
    files = {file.name: file.read_text() for file in HERE.glob("*.py")}
    oracles = {name for name in files if not name.startswith("test_")} - HARNESS
    assert "definition.py" in oracles and len(oracles) > 30
    assert [name for name in oracles if "fedblocks" in files[name]] == []
