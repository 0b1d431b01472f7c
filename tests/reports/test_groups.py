"""Agreement of groupings."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from fedblocks.reports.groups import adjusted_rand, find_groups


def by_pairs(first: list[int], second: list[int]) -> float:
    """The definition, pair by pair: (agreeing pairs - expected) / (mean number of pairs
    - expected).
    """
    pairs = list(combinations(range(len(first)), 2))
    a = sum(first[i] == first[j] for i, j in pairs)
    b = sum(second[i] == second[j] for i, j in pairs)
    both = sum(first[i] == first[j] and second[i] == second[j] for i, j in pairs)
    expected = a * b / len(pairs)
    return (both - expected) / ((a + b) / 2 - expected)


def test_the_index_is_one_for_the_same_groups_under_other_names():
    assert adjusted_rand([0, 0, 1, 1, 2], [5, 5, 3, 3, 9]) == 1.0


def test_the_index_follows_its_definition_and_is_about_zero_by_chance():
    rng = np.random.Generator(np.random.PCG64(0))
    values = []
    for _ in range(200):
        first, second = rng.integers(0, 4, 20).tolist(), rng.integers(0, 3, 20).tolist()
        values.append(adjusted_rand(first, second))
        assert values[-1] == pytest.approx(by_pairs(first, second))
    assert abs(np.mean(values)) < 0.02


def test_clients_that_are_described_alike_are_grouped_together():
    rng = np.random.Generator(np.random.PCG64(1))
    hidden = np.arange(12) % 3
    vectors = np.eye(3)[hidden] + 0.05 * rng.normal(size=(12, 3))
    assert adjusted_rand(hidden, find_groups(vectors, 3)) == 1.0
