"""Per-FedAvg against its algorithm box, in its first-order and its Hessian-free form."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedblocks.core.errors import UserError
from fedblocks.core.net import Net
from fedblocks.engines.round import evaluate
from fedblocks.methods.fedavg import FedAvg
from fedblocks.methods.per_fedavg import PerFedAvg

from . import fedavg, per_fedavg
from .harness import (
    BATCH,
    COHORTS,
    ENGINES,
    FEATURES,
    SIZES,
    agrees,
    federation,
    mlp_net,
    play,
    task_of,
)
from .longer import close
from .plain import Descent

COMMON: dict[str, Any] = {"net": mlp_net(), "lr": 0.2, "epochs": 2, "batch_size": BATCH}
each_engine = pytest.mark.parametrize("engine", ENGINES.values(), ids=list(ENGINES))


@each_engine
@pytest.mark.parametrize(("variant", "delta"), [("fo", None), ("hf", 0.05)])
def test_two_rounds_are_those_of_the_paper(variant: str, delta: float | None, engine: Any) -> None:
    method = PerFedAvg(**COMMON, inner_lr=0.3, variant=variant, delta=delta or 1e-3, adapt_steps=3)
    agrees(method, per_fedavg.run(task_of(method), 0.2, 0.3, delta), engine)


@each_engine
def test_without_an_inner_step_it_is_fedavg_on_half_of_each_batch(engine: Any) -> None:
    method = PerFedAvg(**COMMON, inner_lr=0.0)
    task = task_of(method)
    halves = [
        {i: [[per_fedavg.divided(b, 2)[1] for b in own[0]]] for i, own in c.items()}
        for c in task.rounds
    ]
    expected = fedavg.run(replace(task, rounds=halves), Descent(0.2)).server["model"][0]
    close({k: v[0] for k, v in play(method, engine)[1].server["model"].items()}, expected)


def test_differences_of_gradients_are_the_second_derivative() -> None:
    """Smooth loss, one batch: the Hessian-free step tends to g - alpha H g as delta
    falls, H by autograd.
    """
    net = Net.of(
        lambda: nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, 4)),
        dtype=torch.float64,
    )
    options = {**COMMON, "net": net, "epochs": 1, "batch_size": SIZES[0]}
    method, data = PerFedAvg(**options, inner_lr=0.5, variant="hf", delta=1e-4), federation()
    w = {k: torch.from_numpy(v).requires_grad_() for k, v in task_of(method).start[0].items()}
    (batch,), rows = task_of(method).rounds[0][0][0], torch.from_numpy(data.train[0])
    b1, b2, b3 = (rows[torch.from_numpy(part)] for part in per_fedavg.divided(batch, 3))

    def slope(
        at: dict[str, torch.Tensor], b: torch.Tensor, again: bool = False
    ) -> list[torch.Tensor]:
        loss = F.cross_entropy(net(at, data.x[b]), data.y[b])
        return list(torch.autograd.grad(loss, list(at.values()), create_graph=again))

    near = {
        k: (v - 0.5 * g).detach().requires_grad_() for (k, v), g in zip(w.items(), slope(w, b1))
    }
    g = slope(near, b2)
    bend = torch.autograd.grad(slope(w, b3, again=True), list(w.values()), g)
    after = play(method, ENGINES["sequential"], cohorts=((0,),))[1].server["model"]
    for (key, value), own, second in zip(w.items(), g, bend):
        expected = value - 0.2 * (own - 0.5 * second)
        torch.testing.assert_close(after[key][0], expected.detach(), rtol=0, atol=1e-8)
        assert (second.abs().max() > 1e-3) or key.endswith("bias")


@each_engine
def test_a_batch_of_one_example_serves_for_all_parts(engine: Any) -> None:
    sizes = (1, 5)
    method = PerFedAvg(**{**COMMON, "batch_size": 2}, inner_lr=0.3, variant="hf")
    _, state = play(method, engine, data=federation(sizes=sizes), cohorts=((0,),))
    assert all(torch.isfinite(v).all() for v in state.server["model"].values())
    _, other = play(method, ENGINES["sequential"], data=federation(sizes=sizes), cohorts=((0, 1),))
    assert all(torch.isfinite(v).all() for v in other.server["model"].values())


@each_engine
@pytest.mark.parametrize(("variant", "parts"), [("fo", 2), ("hf", 3)])
def test_running_statistics_move_once_in_a_step(variant: str, parts: int, engine: Any) -> None:
    """Only by the pass on the second part of a batch, with the momentum of 0.1; inner
    slopes leave them alone.
    """
    layers = (nn.Linear(FEATURES, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4))
    net = Net.of(nn.Sequential(*layers), dtype=torch.float64)
    options = {**COMMON, "net": net, "epochs": 1, "batch_size": SIZES[0]}
    method = PerFedAvg(**options, inner_lr=0.0, variant=variant)
    _, state = play(method, engine, cohorts=((0,),))
    task = task_of(method)
    second = task.train[0][0][per_fedavg.divided(task.rounds[0][0][0][0], parts)[1]]
    h = second @ task.start[0]["0.weight"].T + task.start[0]["0.bias"]
    actual = state.server["model"]
    np.testing.assert_allclose(
        actual["1.running_mean"][0].numpy(), 0.1 * h.mean(0), rtol=0, atol=1e-12
    )
    np.testing.assert_allclose(
        actual["1.running_var"][0].numpy(), 0.9 + 0.1 * h.var(0, ddof=1), rtol=0, atol=1e-12
    )


def test_adaptation_uses_training_data_and_makes_the_model_personal() -> None:
    method = PerFedAvg(**COMMON, inner_lr=0.3, adapt_steps=5)
    experiment, state = play(method, ENGINES["vectorised"], cohorts=COHORTS * 2)
    personal = evaluate(experiment, state, [2], ENGINES["vectorised"], part="train")["personal"][2]
    plain, _ = play(FedAvg(**COMMON), ENGINES["vectorised"], cohorts=())
    assert (
        personal[2]
        < evaluate(plain, state, [2], ENGINES["vectorised"], part="train")["personal"][2][2]
    )


@pytest.mark.parametrize(
    "options", [{"variant": "exact"}, {"inner_lr": -0.1}, {"adapt_steps": -1}, {"delta": 0.0}]
)
def test_values_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(options))):
        PerFedAvg(mlp_net(), **options)


def test_degenerate_settings_are_told() -> None:
    assert len(PerFedAvg(mlp_net(), inner_lr=0.0, adapt_steps=0).degenerate()) == 2
    assert not PerFedAvg(mlp_net()).degenerate()
