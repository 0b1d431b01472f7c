"""Small federations of other tasks than one class for each example."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fedblocks as fb

TRUCKS = 6


def numbers(task: fb.Task | None = None, seed: int = 0) -> fb.Federation:
    """Two numbers for each row, which depend on the truck; one of ten is not known."""
    rng = np.random.default_rng(seed)
    truck = np.repeat(np.arange(TRUCKS), rng.integers(20, 40, TRUCKS))
    x = rng.normal(size=(len(truck), 5)).astype("float32")
    slope = rng.normal(size=(TRUCKS, 5, 2))
    y = np.einsum("ri,rio->ro", x, slope[truck]) + 0.1 * rng.normal(size=(len(truck), 2))
    y[rng.random(y.shape) < 0.1] = np.nan
    return fb.Federation.from_users(x, y, truck, task=task or fb.Task("regression"))


def labels(task: fb.Task | None = None, seed: int = 0) -> fb.Federation:
    """Three labels for each row, each there or not."""
    data = numbers(seed=seed)
    rng = np.random.default_rng(seed + 1)
    y = torch.cat([data.y, torch.from_numpy(rng.normal(size=(len(data.y), 1))).float()], 1)
    y = torch.where(y.isnan(), torch.nan, (y > 0).float())
    rows = [data.train, data.validation, data.test]
    return fb.Federation(data.x, y, *rows, 3, data.names, task=task or fb.Task("multi-label"))


def net(outputs: int) -> fb.Net:
    return fb.Net.of(lambda: nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, outputs)))


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
