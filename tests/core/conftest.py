"""A small federation for the tests of the core."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedblocks.data.federation import Federation, Parts


def make_federation(
    sizes: tuple[int, ...] = (9, 4, 7, 5),
    shape: tuple[int, ...] = (6,),
    dtype: torch.dtype = torch.float64,
) -> Federation:
    rng = np.random.Generator(np.random.PCG64(7))
    centres = rng.normal(size=(3, *shape))

    def pair(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        y = rng.integers(0, 3, count)
        x = centres[y] + 0.5 * rng.normal(size=(count, *shape))
        return torch.from_numpy(x).float(), torch.from_numpy(y)

    built = Federation.from_parts([Parts(pair(n), pair(3), pair(6)) for n in sizes], classes=3)
    object.__setattr__(built, "x", built.x.to(dtype))
    return built


@pytest.fixture
def federation() -> Federation:
    return make_federation()


@pytest.fixture
def images() -> Federation:
    return make_federation(shape=(1, 6, 6))
