"""What is tried before a run, and on what."""

from __future__ import annotations

import warnings
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedblocks as fb
from fedblocks.core.errors import UserError
from fedblocks.core.task import Task
from fedblocks.data.arrays import warn_of_lost_digits
from fedblocks.data.rows import Rows
from fedblocks.runs import build, idle_blocks, sameness, trials


def test_a_run_is_compared_on_the_cpu_and_client_after_client() -> None:
    data, net, method = {"name": "digits", "clients": 4}, {"name": "mlp"}, {"name": "fedavg"}
    tables = {"data": data, "net": net, "method": method}
    changes = {"device": "cuda", "engine": "vectorised", "rounds": 3, "seed": 5}
    config = fb.Config.model_validate({**tables, **changes})
    plain = sameness.on_the_cpu(config)
    assert (plain.device, plain.engine, plain.rounds, plain.seed) == ("cpu", "sequential", 3, 5)
    assert (config.device, config.engine) == ("cuda", "vectorised")


def test_a_run_is_in_half_precision_only_if_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(build, "refuse_half", lambda *given: asked.append(given))
    experiment: Any = SimpleNamespace(methods={"all": SimpleNamespace(net=fb.small_net())})
    cpu = torch.device("cpu")
    usual = SimpleNamespace(precision="float32")
    assert build._is_half(usual, experiment, cpu) is False and not asked  # type: ignore[arg-type]
    half = SimpleNamespace(precision="bf16")
    assert build._is_half(half, experiment, cpu) is True  # type: ignore[arg-type]
    assert asked == [([torch.float64], cpu)]


def beside(outputs: Tensor, y: Tensor) -> Tensor:
    """Depends on the other examples."""
    return (outputs - outputs.mean(0)).square().sum(-1)


def test_a_loss_is_tried_silently_in_double_precision_and_alone() -> None:
    trial = trials.TaskTrial(torch.randn(2, 1), torch.randn(2, 1), "ann")
    seen: list[tuple[torch.dtype, bool]] = []

    def square(outputs: Tensor, y: Tensor) -> Tensor:
        seen.append((outputs.dtype, outputs.requires_grad))
        return (outputs - y).square().sum(-1)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trials._try_loss(Task("regression", loss=square), trial)
    assert seen == [(torch.float32, True), (torch.float64, False), (torch.float64, False)]
    with pytest.raises(UserError, match="is another when other examples are beside it"):
        trials._try_loss(Task("regression", loss=beside), trial)


@pytest.mark.parametrize(
    ("outputs", "y", "many"),
    [
        ((8, 3), (8,), 9),
        ((8, 9), (8,), 10),  # as many examples as outputs could be taken for these
        ((8, 9, 10), (8, 9), 11),
        ((8, 20, 5000), (8, 20), 9),  # a vocabulary: not 5,001 texts of 20 x 5000 numbers
        ((2, 128, 50_000), (2, 128), 3),
    ],
)
def test_a_loss_is_tried_on_few_examples_however_many_classes_there_are(
    outputs: tuple[int, ...], y: tuple[int, ...], many: int
) -> None:
    seen: list[tuple[int, ...]] = []

    def first(outputs: Tensor, y: Tensor) -> Tensor:
        seen.append(tuple(outputs.shape))
        return -outputs[..., 0]

    trial = trials.TaskTrial(torch.zeros(outputs), torch.zeros(y, dtype=torch.long), "ann")
    trials._try_loss(
        Task("sequence-labelling" if len(y) > 1 else "classification", loss=first), trial
    )
    assert {shape[0] for shape in seen} == {many, 1}
    assert {shape[1:] for shape in seen} == {outputs[1:]}


# float32 rounds values around 2e9 by up to 64, and the values of a column are 1000 apart or more
TIMES = np.array([2e9, 2e9 + 1000, 2e9 + 2000, 2e9 + 3060.0])


@pytest.mark.parametrize(
    ("x", "column"),
    [
        (np.stack([np.arange(4.0), TIMES], 1), 1),
        (torch.from_numpy(TIMES)[:, None], 0),
        (torch.from_numpy(TIMES)[:, None].requires_grad_(), 0),
        (-TIMES[:, None], 0),
        (TIMES[:, None] - 2e9, None),
        (np.full((4, 1), 0.1), None),  # no spread to lose
        (1.0 + 1e-15 * np.arange(4.0)[:, None], None),  # a spread of rounding
        (1e6 * (1.0 + 1e-15 * np.arange(4.0)[:, None]), None),
        (1e-6 * (1.0 + 1e-9 * np.arange(4.0)[:, None]), 0),
        (TIMES.astype(np.float32)[:, None], None),
        (np.zeros((0, 1)), None),
    ],
)
def test_columns_whose_differences_float32_rounds_away_are_told(
    x: object, column: int | None
) -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        warn_of_lost_digits(x)
    told = [int(str(one.message).split()[1]) for one in said]
    assert told == ([] if column is None else [column])


def test_data_without_training_rows_are_tried_on_two_examples_of_nobody() -> None:
    federation = fb.small_federation()
    some = trials._take_examples(fb.small_net(), federation)
    assert some.client == str(federation.names[0]) and len(some.y) == 8  # of the largest's 10
    empty = replace(federation, train=Rows.none(federation.clients))
    nobody = trials._take_examples(fb.small_net(), empty)
    assert nobody.client == "" and len(nobody.outputs) == len(nobody.y) == 2


def test_the_most_steps_of_a_client_count_in_phases_that_train_a_block() -> None:
    update = lambda lr, *names: SimpleNamespace(lr=lr, train=names)
    phase = lambda *updates: SimpleNamespace(updates=updates)
    phases = [phase(update(0.1, "a")), phase(update(0.0, "a"), update(0.1, "b"))]
    clients = [[[1, 2], [1]], [[1, 2, 3], []]]  # steps of each in each phase
    job: Any = SimpleNamespace(batches=clients, phases=phases, cohort=SimpleNamespace(round=0))
    assert idle_blocks._steps(job, "a") == [3] and idle_blocks._steps(job, "b") == [1]
    assert idle_blocks._steps(job, "c") == []
    job.batches = []
    assert idle_blocks._steps(job, "a") == [0]


def test_a_run_that_would_wait_for_nothing_is_refused_while_it_is_prepared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(config: Any, federation: Any) -> None:
        raise UserError("nothing to wait for", "")

    for name in ("check_stopping", "_check_faults"):
        with monkeypatch.context() as patch:
            patch.setattr(build, name, refuse)
            patch.setattr(build, "hold_out", lambda config, federation: ([0], []))
            patch.setattr(build, "device_of", lambda config: (torch.device("cpu"), "why"))
            patch.setattr(build, "experiment_of", lambda *given: pytest.fail("too late"))
            with pytest.raises(UserError, match="nothing to wait for"):
                build.prepare(SimpleNamespace(stopping=None, faults=None), fb.small_federation())  # type: ignore[arg-type]


@pytest.mark.parametrize("listener", ["on_round", "on_note", "on_evaluation"])
def test_a_listener_that_cannot_be_called_is_refused_at_once(listener: str) -> None:
    for begin in (
        lambda **given: fb.run(fb.FedAvg(fb.small_net()), fb.small_federation(), 1, **given),
        lambda **given: fb.resume("nowhere", **given),
    ):
        with pytest.raises(UserError, match=listener):
            begin(**{listener: 3})
