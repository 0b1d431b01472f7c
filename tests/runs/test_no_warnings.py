"""A run warns of nothing that its user cannot change: tensors that need gradients are let go of
before they become numbers, and every warning of torch would be an error here.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedblocks as fb
from fedblocks.engines.net_check.seeding import looks_trained
from tests.runs.tempered import Tempered


@pytest.fixture(autouse=True)
def every_warning_is_an_error() -> Iterator[None]:
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # else torch says most things once in a process
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
    torch.set_warn_always(before)


def squares(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs - nn.functional.one_hot(y, 3)).square().sum(-1)


def share_of_firsts(outputs: Tensor, y: Tensor) -> float:
    return float((outputs.argmax(-1) == 0).double().mean())


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_a_run_with_code_of_ones_own_is_silent(engine: str, tmp_path: Path) -> None:
    source = np.random.default_rng(0)
    x = source.normal(size=(100, 6)).astype("float32")
    y = (x @ source.normal(size=(6, 3))).argmax(1)
    task = fb.Task(loss=squares, metrics=["accuracy", fb.Metric("firsts", share_of_firsts)])
    users = np.repeat(np.arange(4), [20, 20, 30, 30])
    data = fb.Federation.from_users(x, y, users, split=(0.6, 0.2, 0.2), task=task)
    module = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))
    method = Tempered(fb.Net.of(module), batch_size=8)
    result = fb.run(method, data, rounds=2, out=tmp_path / "run", engine=engine)
    assert result.status == "finished"


def test_looking_at_a_module_is_silent() -> None:
    assert not looks_trained(nn.Linear(8, 8))
