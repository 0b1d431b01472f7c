"""Targets keep the digits that they were given with, and a run says where its net cannot."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fedblocks as fb
from fedblocks.core.random import derive
from fedblocks.data.arrays import as_targets

FAR = 2e9 + np.arange(12)  # float32 has no number between 2,000,000,000 and 2,000,000,128
REGRESSION = fb.Task("regression")


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def pairs(y: np.ndarray, task: str | fb.Task = "regression") -> fb.Federation:
    """Two clients with half of the rows each."""
    x = np.linspace(-1, 1, len(y), dtype="float32")[:, None]
    return fb.Federation.from_users(x, y, np.arange(len(y)) % 2, task=task)


@pytest.mark.parametrize(
    ("y", "wanted"),
    [
        (FAR, torch.float64),
        (FAR.astype("int64"), torch.float64),
        (np.array([0.1, np.nan]), torch.float64),
        (np.array([0.5, np.nan, -3.0]), torch.float32),
        (np.array([0.1], dtype="float32"), torch.float32),
        (np.array([3, -7]), torch.float32),
    ],
)
def test_targets_are_float32_where_that_holds_them_and_float64_elsewhere(
    y: np.ndarray, wanted: torch.dtype
) -> None:
    targets = as_targets(y, REGRESSION)
    assert targets.dtype == wanted
    np.testing.assert_array_equal(targets.numpy()[:, 0].astype("float64"), y.astype("float64"))


def one_weight(dtype: torch.dtype) -> fb.Net:
    return fb.Net.of(lambda: nn.Linear(1, 1), dtype=dtype)


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
@pytest.mark.parametrize("task", ["regression", "multi-label"])
def test_a_net_of_float64_learns_from_targets_of_float64(engine: str, task: str) -> None:
    """A step over all rows, beside the same step in plain PyTorch."""
    kind = fb.Task(task, label_smoothing=0.1 if task == "multi-label" else 0.0)
    y = np.random.default_rng(0).normal(size=(12, 1)) if task == "regression" else np.eye(12)[:, :1]
    data, net = pairs(y, kind), one_weight(torch.float64)
    method = fb.FedAvg(net, lr=0.1, batch_size=100, epochs=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few rows
        run = fb.run(method, data, rounds=1, engine=engine)
    wanted = [_stepped(net, data, client, kind) for client in range(2)]
    sizes = data.train.sizes
    for name, value in run.state().server["model"].items():
        mean = sum(n * own[name] for n, own in zip(sizes, wanted, strict=True)) / sizes.sum()
        torch.testing.assert_close(value[0], mean, rtol=1e-14, atol=1e-15)


def _stepped(
    net: fb.Net, data: fb.Federation, client: int, task: fb.Task
) -> dict[str, torch.Tensor]:
    """A client's tensors after one step of gradient descent on all of its rows."""
    params = {name: value.requires_grad_() for name, value in net.init(_seed()).items()}
    rows = torch.from_numpy(np.array(data.train[client]))
    x, y = data.x[rows].double(), data.y[rows].double()
    outputs = x @ params["weight"].T + params["bias"]
    if task.kind == "regression":
        loss = (outputs - y).square().mean()
    else:
        smooth = y * 0.9 + 0.05
        loss = nn.functional.binary_cross_entropy_with_logits(outputs, smooth)
    loss.backward()
    return {name: (p - 0.1 * p.grad).detach() for name, p in params.items() if p.grad is not None}


def _seed() -> int:
    return derive(0, "init", 0)


def test_a_run_says_that_a_net_of_float32_cannot_tell_its_targets_apart() -> None:
    with pytest.warns(UserWarning, match=r"12 different targets become 1(.|\n)*float64"):
        fb.run(fb.FedAvg(one_weight(torch.float32)), pairs(FAR), rounds=1)


@pytest.mark.parametrize(
    ("y", "dtype"),
    [(FAR, torch.float64), (np.random.default_rng(0).normal(size=12), torch.float32)],
)
def test_it_says_nothing_where_no_difference_is_lost(y: np.ndarray, dtype: torch.dtype) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        fb.run(fb.FedAvg(one_weight(dtype), lr=1e-3), pairs(y), rounds=1)
    assert not any("different targets" in str(one.message) for one in told)


SECONDS = 1.7e9 + np.arange(12.0)  # since 1970; float32 rounds them to multiples of 128


def test_inputs_whose_differences_are_lost_are_told() -> None:
    x = np.stack([np.arange(12.0), SECONDS], 1)
    with pytest.warns(UserWarning, match=r"column 1 of x has values around 1700000000 with"):
        fb.Federation.from_users(x, np.arange(12) % 2, [0, 1] * 6)


@pytest.mark.parametrize(
    "x",
    [
        SECONDS - SECONDS.mean(),
        np.full(12, 1.7e9),
        SECONDS.astype("int64"),
        0.1 + 1e-16 * np.arange(12),
        np.random.default_rng(0).normal(1000, 1, 12),
    ],
    ids=["centred", "constant", "tokens", "rounding of float64", "measured"],
)
def test_of_other_inputs_nothing_is_said(x: np.ndarray) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fb.Federation.from_users(x[:, None], np.arange(12) % 2, [0, 1] * 6)
