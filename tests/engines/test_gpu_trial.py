"""The trial of engines that long runs have on a GPU, played on a CPU."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from fedblocks.config.model import Config
from fedblocks.engines.auto import gpu_trial
from fedblocks.engines.auto.gpu_trial import planned_on_gpu, try_on_gpu
from fedblocks.engines.auto.measured import CACHE
from fedblocks.engines.auto.trial import TrialPlan
from fedblocks.runs import engine_choice
from fedblocks.testing import EXAMPLES


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE, str(tmp_path / "engines"))


def plan() -> TrialPlan:
    example = EXAMPLES["fedavg"]()
    return TrialPlan(example.experiment(), example.everybody, cohort=4)


@pytest.mark.parametrize(
    ("seconds", "best"),
    [
        ({"sequential": 1.0, "vectorised": 1.05}, "vectorised"),  # hardly slower
        ({"sequential": 1.0, "vectorised": 1.2}, "sequential"),
        ({"sequential": 1.0, "vectorised": 0.1}, "vectorised"),
        ({"sequential": 1.0}, "sequential"),  # the stack did not fit
    ],
)
def test_clients_follow_each_other_only_where_that_is_clearly_faster(monkeypatch, seconds, best):
    monkeypatch.setattr(gpu_trial, "try_on_gpu", lambda plan: seconds)
    engine, why = planned_on_gpu(plan())
    assert engine.name == best
    assert "sequential 1000 ms" in why and why.endswith("for a few steps of this net")
    monkeypatch.setattr(gpu_trial, "try_on_gpu", None)  # would fail if anybody asked
    assert planned_on_gpu(plan())[0].name == best


def test_both_engines_do_the_same_steps_once_before_they_are_timed(monkeypatch):
    here = plan()
    calls = []
    fake = lambda name: SimpleNamespace(train=lambda job: calls.append((name, id(job))))
    monkeypatch.setattr(
        TrialPlan, "engines", lambda self: {n: fake(n) for n in ("sequential", "vectorised")}
    )
    assert try_on_gpu(here).keys() == {"sequential", "vectorised"}
    assert [name for name, _ in calls] == ["sequential"] * 2 + ["vectorised"] * 2
    assert len({job for _, job in calls}) == 1


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("full"),
        RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"),  # as it says that it finds none
    ],
    ids=["torch", "cuDNN"],
)
def test_a_stack_that_does_not_fit_is_left_out(error, monkeypatch):
    def full(job: object) -> None:
        raise error

    fits, too_large = SimpleNamespace(train=lambda job: None), SimpleNamespace(train=full)
    monkeypatch.setattr(
        TrialPlan, "engines", lambda self: {"sequential": fits, "vectorised": too_large}
    )
    assert list(try_on_gpu(plan())) == ["sequential"]
    monkeypatch.setattr(TrialPlan, "engines", lambda self: {"sequential": too_large})
    with pytest.raises(torch.OutOfMemoryError):
        try_on_gpu(plan())


@pytest.mark.parametrize(("worth", "tried"), [(0.0, True), (1e30, False)])
def test_only_long_runs_on_a_gpu_are_tried(monkeypatch, worth, tried):
    asked = []
    monkeypatch.setattr(
        engine_choice, "planned_on_gpu", lambda plan: (asked.append(plan), (None, ""))[1]
    )
    monkeypatch.setattr(engine_choice, "planned", None)
    monkeypatch.setattr(engine_choice, "WORTH_ON_GPU", worth)
    table = {"rounds": 2, "method": {"name": "fedavg"}, "net": {"name": "mlp"}}
    config = Config.of({**table, "data": {"name": "digits", "clients": 4}})
    example = EXAMPLES["fedavg"]()
    device = torch.device("cuda")
    engine, why = engine_choice.engine_of(
        config, example.experiment(), 4, device, example.everybody
    )
    assert bool(asked) is tried
    assert tried or (engine.name == "vectorised" and "a whole cohort at once" in why)
