"""Small parts of FedMN, each against what is worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedblocks.core.modular_net import ModularNet
from fedblocks.core.parts import Params
from fedblocks.core.server import Cohort
from fedblocks.core.task import CLASSIFICATION
from fedblocks.engines.round import Experiment
from fedblocks.methods.fedmn import gates
from fedblocks.methods.fedmn.method import FedMN
from fedblocks.methods.fedmn.pool import AS_PRINTED
from fedblocks.methods.fedmn.reference import FedMNReference
from fedblocks.methods.fedmn.router import Router, in_units_of, subset
from fedblocks.methods.fedmn.warm_start import fit_head
from fedblocks.testing import EXAMPLES, small_federation, small_net


def cohort(sizes: list[float], round: int = 0, population: int | None = None) -> Cohort:
    return Cohort(
        torch.arange(len(sizes)), torch.tensor(sizes).double(), {}, population or len(sizes),
        round, 0, torch.tensor([], dtype=torch.long),
    )  # fmt: skip


@pytest.mark.parametrize("edge", [0.0, 1.0])
def test_a_gate_is_finite_at_both_ends_of_the_noise(
    edge: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gates, "uniform", lambda key, shape: torch.full(shape, edge))
    logits = torch.zeros(2).double().requires_grad_()
    relaxed = gates.draw_relaxed(logits, torch.tensor(0), 0.5, 1.0)
    (slope,) = torch.autograd.grad(relaxed.sum(), logits)
    strange = 1e-6 if edge == 0 else 1 - 1e-6
    wanted = 1 / (1 + ((1 - strange) / strange) ** 2)  # odds to the power of 1 / temperature
    assert relaxed.tolist() == pytest.approx([wanted] * 2, rel=0.1)
    assert (slope > 0).all()


def test_noise_and_temperature_of_a_gate_are_not_taken_for_each_other() -> None:
    logits, draws = torch.tensor([1.0]), torch.tensor([0.75])
    expected = 1 / (1 + np.exp(-(0.5 * np.log(3) + 1) / 2))
    assert gates.concrete(logits, draws, 2.0, 0.5).item() == pytest.approx(expected)


def test_a_head_is_fitted_to_clients_that_all_look_alike() -> None:
    seen, wanted = torch.ones(3, 2).double(), torch.tensor([[1.0], [2.0], [6.0]]).double()
    weight, bias = fit_head(seen, wanted)
    assert weight.tolist() == [[0.0, 0.0]] and bias.tolist() == [3.0]


def test_a_head_that_can_be_fitted_is() -> None:
    seen = torch.tensor([[0.0, 1.0], [2.0, 1.0], [4.0, 1.0]]).double()
    weight, bias = fit_head(seen, (3 * seen[:, :1] + 1))
    # the constant column teaches nothing
    assert weight[0].tolist() == pytest.approx([3.0, 0.0], abs=0.1)
    assert bias.item() == pytest.approx(1.0, abs=0.2)


def test_units_of_the_federation_are_its_standard_deviations() -> None:
    moments = {"mean": torch.tensor([1.0, 2.0]), "square": torch.tensor([5.0, 3.9])}
    units = in_units_of(moments, torch.tensor([5.0, 2.0]))
    # a variance of 4; and of -0.1, by rounding, which is taken for 0
    assert units.tolist() == pytest.approx([2.0, 0.0], abs=1e-5)


def test_a_subset_is_of_real_examples_before_padding() -> None:
    rows, real = torch.tensor([7, 8, 9, 7]), torch.tensor([1.0, 1.0, 1.0, 0.0])
    order = torch.tensor([0.3, 0.1, 0.2, 0.0])
    chosen = subset(rows, real, 2, order)
    assert [one.tolist() for one in chosen] == [[8, 9], [1.0, 1.0]]
    chosen = subset(rows, real, 9, order)
    assert [one.tolist() for one in chosen] == [[8, 9, 7, 7], [1.0, 1.0, 1.0, 0.0]]


class Steps(nn.Module):
    """A summary for each step of a sequence: the number itself, twice."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x[..., None] * self.weight


def router(summary: Any, inputs: int = 3) -> tuple[Router, Params]:
    layers = [lambda: nn.Linear(inputs, 2), lambda: nn.Linear(2, 2)]
    path = ModularNet(layers, summary, torch.float64)
    made = Router(path, 1, 2, 2, unit_length=False, relu=False, samples=0)
    params = {k: torch.zeros_like(v) for k, v in made.net.init(0).items()}
    params |= {k: torch.ones_like(v) for k, v in params.items() if k.startswith("inputs")}
    params["labels.weight"] = torch.eye(2).double()
    params["gates.weight"] = torch.tensor([[1.0, 10.0, 100.0, 1000.0]]).double()
    return made, params


def client_of(x: Tensor, y: list[int], size: float) -> Any:
    mask = (torch.arange(len(y)) < size).double()
    source = SimpleNamespace(x=x.double(), y=torch.tensor(y))
    rows, task = torch.arange(len(y)), CLASSIFICATION
    return SimpleNamespace(source=source, rows=rows, mask=mask, size=torch.tensor(size), task=task)


def test_a_router_sees_the_mean_over_time_of_real_examples() -> None:
    """Means over time are 2 and 5, the labels 0 and 1; the third example is padding."""
    made, params = router(Steps)
    x = torch.tensor([[1.0, 2.0, 3.0], [3.0, 4.0, 8.0], [90.0, 90.0, 90.0]])
    client = client_of(x, [0, 1, 1], 2.0)
    logits = made.of_client(params, client)
    assert logits.tolist() == pytest.approx([3.5 + 35 + 50 + 500])
    moments = made.measure(params, client)
    assert moments["square"].tolist() == pytest.approx([14.5, 14.5, 0.5, 0.5])


def test_a_client_without_examples_has_no_preference_and_teaches_nothing() -> None:
    made, params = router(lambda width: nn.Linear(3, width))
    client = client_of(torch.ones(1, 3), [0], 0.0)
    batch = SimpleNamespace(client=client, key=torch.tensor(0))
    live = {k: v.clone().requires_grad_() for k, v in params.items()}
    for logits in (made.of_client(live, client), made.of_step(live, batch)):  # type: ignore[arg-type]
        slopes = torch.autograd.grad(logits.sum(), list(live.values()), allow_unused=True)
        assert logits.item() == 0
        assert all(bool((g == 0).all()) for g in slopes if g is not None)


def test_a_round_of_turns_without_anybody_leaves_the_modules_alone() -> None:
    method = FedMNReference(net=small_net(), client_order="sequential", widths=(6, 5))
    state = Experiment.of(method, small_federation()).start()
    last = cohort([], round=3, population=4)
    after = method.conclude(state.server, state.server, {}, last)
    for name in method.layers:
        for key, value in state.server[name].items():
            assert torch.equal(after[name][key], value)


def test_numbers_stored_before_an_option_came_are_those_of_its_printed_value() -> None:
    """Three were there from the start: their values always say what was run."""
    from_the_start = {"modules", "widths", "temperature"}
    printed = {k: v for k, v in AS_PRINTED.items() if k not in from_the_start}
    assert FedMN.later_options == {**printed, "reading": "apart", "router_groups": "auto"}


@pytest.mark.parametrize(
    ("train_router", "router_lr", "gate_mode", "steps"),
    [
        ("all", None, "st_hard", ["loss, with the router"]),
        ("all", 0.3, "st_hard", ["module_loss", "router alone at 0.3"]),
        ("all", 0.3, "soft", ["loss", "router alone at 0.3"]),
        ("nothing", None, "st_hard", ["module_loss"]),
        ("nothing", None, "soft", ["loss"]),
    ],
)
def test_a_step_moves_the_router_with_the_modules_or_after_them_or_not_at_all(
    train_router: Any, router_lr: float | None, gate_mode: Any, steps: list[str]
) -> None:
    options = {"train_router": train_router, "router_lr": router_lr, "gate_mode": gate_mode}
    method = EXAMPLES["fedmn"]().methods()["all"]
    method = replace(method, **options)  # type: ignore[type-var]
    (phase,) = method.phases()
    told = []
    for update in phase.updates:
        if update.train == ("router",):
            told.append(f"router alone at {update.lr}")
        else:
            name = update.loss.__name__  # type: ignore[union-attr]
            told.append(name + (", with the router" if "router" in update.train else ""))
    assert told == steps
