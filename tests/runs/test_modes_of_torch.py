"""Modes of torch that a caller has set change nothing: numbers are as the configuration says."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedblocks as fb
from fedblocks.core.torch_modes import own_modes
from fedblocks.nets import mlp

MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
}


def method() -> fb.FedAvgFT:
    return fb.FedAvgFT(mlp((6,), 3, hidden=(8,)), lr=0.1, batch_size=8)


def some_data() -> fb.Federation:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 6)).astype("float32")
    return fb.Federation.from_users(x, rng.integers(0, 3, 200), np.arange(200) % 5)


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
@pytest.mark.parametrize("name", MODES)
def test_a_run_is_the_same_in_every_mode(name: str, engine: str, tmp_path: Path) -> None:
    usual = fb.run(method(), some_data(), 2, tmp_path / "a", engine=engine)  # type: ignore[arg-type]
    with MODES[name]():
        own = method()
        run = fb.run(own, some_data(), 1, tmp_path / "b", engine=engine)  # type: ignore[arg-type]
        run = fb.resume(tmp_path / "b", own, some_data(), rounds="+1")
    before, now = usual.state().server["model"], run.state().server["model"]
    assert all(torch.equal(before[key], now[key]) for key in before)
    assert usual.scores("loss") == run.scores("loss")


@pytest.mark.parametrize("name", MODES)
def test_a_round_an_evaluation_and_a_check_are_the_same_in_every_mode(name: str) -> None:
    def work() -> tuple[torch.Tensor, Any, Any]:
        experiment = fb.Experiment.of(method(), some_data(), seed=1)
        state, _ = fb.run_round(experiment, experiment.start(), range(5), fb.Sequential())
        scores = fb.evaluate(experiment, state, range(5), fb.Sequential())
        report = fb.check_net(mlp((6,), 3, hidden=(8,)), torch.randn(21, 6))
        return next(iter(state.server["model"].values())), scores, report.engines

    usual = work()
    with MODES[name]():
        now = work()
    assert torch.equal(usual[0], now[0]) and usual[1:] == now[1:]


def test_a_comparison_and_a_personal_model_are_the_same_under_autocast(tmp_path: Path) -> None:
    def work(folder: Path) -> tuple[Any, Any]:
        found = fb.compare([method()], some_data(), rounds=1, seeds=1, out=folder)
        run = found.runs["fedavg_ft"][0]
        model = fb.personal(run, 0, method(), some_data())
        return found.rows[0]["mean"], next(iter(model.merged().values()))

    usual = work(tmp_path / "a")
    with MODES["autocast"]():
        now = work(tmp_path / "b")
    assert usual[0] == now[0] and torch.equal(usual[1], now[1])


def test_the_modes_of_the_caller_are_as_before_afterwards() -> None:
    with torch.no_grad(), MODES["autocast"]():
        with own_modes():
            assert torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")
        assert not torch.is_grad_enabled() and torch.is_autocast_enabled("cpu")
