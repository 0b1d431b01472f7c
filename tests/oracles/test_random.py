"""Noise as a function of keys: the numbers of splitmix64, even, and with no relation
between keys or places.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.func import vmap

from fedblocks.core.random import derive, fold, generator, uniform

COUNT = 200_000
WRAP = 2**64


def finalised(z: int) -> int:
    """The output function of splitmix64 (Steele, Lea and Flood, 2014), on unsigned integers."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % WRAP
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % WRAP
    return z ^ (z >> 31)


def drawn(key: int, count: int = COUNT) -> np.ndarray:
    return uniform(torch.tensor(key), (count,)).double().numpy()


def chi_square(counts: np.ndarray) -> float:
    """How far counts are from even, in standard deviations."""
    even, freedom = counts.sum() / counts.size, counts.size - 1
    return float((((counts - even) ** 2 / even).sum() - freedom) / (2 * freedom) ** 0.5)


@pytest.mark.parametrize("key", [0, 1, -1, 2**63 - 1, -(2**63), 1234567890123456789])
def test_uniform_is_splitmix64_finalised_twice(key: int) -> None:
    step = 0x9E3779B97F4A7C15
    bits = [finalised(finalised((key + i * step) % WRAP)) for i in range(1, 9)]
    expected = [((b >> 41) + 0.5) / 2**23 for b in bits]
    assert uniform(torch.tensor(key), (8,)).tolist() == expected


@pytest.mark.parametrize("number", [0, 1, 2, 1000])
def test_fold_is_splitmix64_of_key_and_number(number: int) -> None:
    for key in (0, -5, 2**62):
        expected = finalised((key + (number + 1) * 0x94D049BB133111EB) % WRAP)
        assert fold(torch.tensor(key), number).item() % WRAP == expected


def test_the_shape_does_not_change_the_numbers() -> None:
    key = torch.tensor(5)
    assert torch.equal(uniform(key, (6, 4)).flatten(), uniform(key, (24,)))
    # rows of padding come after the real ones
    assert torch.equal(uniform(key, (2, 4)), uniform(key, (6, 4))[:2])


def test_noise_inside_vmap_is_the_noise_outside() -> None:
    keys = torch.tensor([derive(3, i) for i in range(9)])
    inside = vmap(lambda key: uniform(fold(key, 4), (5, 2)))(keys)
    assert torch.equal(inside, torch.stack([uniform(fold(key, 4), (5, 2)) for key in keys]))


@pytest.mark.parametrize("key", [0, 1, derive(0, "noise")])
def test_uniform_is_even_between_0_and_1(key: int) -> None:
    u = drawn(key)
    assert u.min() > 0 and u.max() < 1
    assert abs(u.mean() - 1 / 2) < 5 * (1 / 12 / COUNT) ** 0.5
    # 1/180: the variance of (u - 1/2)^2
    assert abs(u.var() - 1 / 12) < 5 * (1 / 180 / COUNT) ** 0.5
    assert abs(chi_square(np.bincount((u * 1000).astype(int), minlength=1000))) < 5


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(lambda u: drawn(12), id="the next key"),
        pytest.param(
            lambda u: uniform(fold(torch.tensor(11), 1), (COUNT,)).double().numpy(),
            id="a folded key",
        ),
        pytest.param(lambda u: np.roll(u, 1), id="the next place"),
        pytest.param(lambda u: np.roll(u, 64), id="the place 64 further on"),
    ],
)
def test_numbers_have_no_relation_to_those_of(other: Callable[[np.ndarray], np.ndarray]) -> None:
    u = drawn(11)
    v = other(u)
    assert abs(np.corrcoef(u, v)[0, 1]) < 5 / COUNT**0.5
    pairs = np.bincount((u * 20).astype(int) * 20 + (v * 20).astype(int), minlength=400)
    assert abs(chi_square(pairs)) < 5


def test_the_first_numbers_of_many_keys_are_even() -> None:
    """Across clients and steps only a few numbers of each key are used."""
    for keys in (torch.arange(COUNT), vmap(lambda k: fold(k, 1))(torch.arange(COUNT))):
        u = vmap(lambda k: uniform(k, (1,)))(keys).double().numpy()
        assert abs(u.mean() - 1 / 2) < 5 * (1 / 12 / COUNT) ** 0.5
        assert abs(chi_square(np.bincount((u[:, 0] * 1000).astype(int), minlength=1000))) < 5


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ((0,), 8482559467159178675),
        ((7, "init", 0), 4195604927878129879),
        ((7, "init", 1), 5765777762565198394),
        ((3, 2, 5, "train", "noise"), 4023896977512402684),
        ((3, 2, 5, "train", 0, 1), 8510296288358102997),
    ],
)
def test_derived_seeds_never_change(path: tuple[int, ...], expected: int) -> None:
    """Half of the first 8 bytes, little end first, of the SHA-256 of the typed path:
    old runs can be repeated.
    """
    assert derive(*path) == expected
    text = "/".join(f"{'int' if isinstance(p, int) else 'str'}:{p}" for p in path)
    assert expected == int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") // 2


def test_every_part_of_a_path_matters() -> None:
    paths = [
        (0,),
        (1,),
        (0, 1),
        (1, 0),
        (0, "1"),
        (0, 1, "train"),
        (0, 1, "adapt"),
        (0, "1", "train"),
        (0, 11),
    ]
    assert len({derive(*path) for path in paths}) == len(paths)  # type: ignore[arg-type]


def test_a_generator_is_a_function_of_its_path() -> None:
    assert (
        generator(3, 1, "order").permutation(10).tolist()
        == generator(3, 1, "order").permutation(10).tolist()
    )
    assert (
        generator(3, 1, "order").random(5).tolist() != generator(3, 2, "order").random(5).tolist()
    )
