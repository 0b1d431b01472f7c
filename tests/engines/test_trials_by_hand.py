"""Trials of engines and of nets: what is tried, what is remembered, and what plain PyTorch does."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedblocks.core import mode
from fedblocks.core.admission import Refusal
from fedblocks.core.errors import NetError
from fedblocks.core.net import Net
from fedblocks.core.random import derive, fold
from fedblocks.engines.auto import measured, others, trial
from fedblocks.engines.auto.measured import DOUBT, Measured, keep, recall
from fedblocks.engines.auto.trial import TrialPlan, fastest, trial_job
from fedblocks.engines.net_check import trial as net_trial
from fedblocks.engines.net_check.plain_loop import TorchLoop
from fedblocks.engines.net_check.trial import NetTrial, _twin, examples_for
from fedblocks.engines.replay import folding, replayed
from fedblocks.engines.replay.program import Layout, RecordedCall, Ref
from fedblocks.engines.replay.replayed import Pace, _Visit
from fedblocks.engines.round import Experiment
from fedblocks.methods.fedavg import FedAvg
from fedblocks.testing.federations import small_federation, small_net, without_training_rows

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def folder(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(measured.CACHE, str(tmp_path))


def plan(data: Any = None, method: Any = None, **changes: Any) -> TrialPlan:
    experiment = Experiment.of(method or FedAvg(small_net()), data or small_federation())
    return replace(TrialPlan(experiment, range(6), 4, processes=3), **changes)


def test_engines_have_the_chunk_and_as_many_workers_as_there_are_clients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trial, "available", lambda: True)
    engines: Any = plan(chunk=9).engines()
    assert [*engines] == ["sequential", "vectorised", "processes"]
    assert engines["vectorised"].chunk == 9 and engines["processes"].count == 3
    two: Any = plan(cohort=2).engines()
    assert two["processes"].count == 2
    pair: Any = plan(processes=2).engines()
    assert pair["processes"].count == 2
    monkeypatch.setattr(trial, "available", lambda: False)
    assert "processes" not in plan().engines()


def test_engines_that_are_not_there_any_more_are_not_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = Measured({"sequential": 0.3, "processes": 0.1, "vectorised": 0.2})
    monkeypatch.setattr(trial, "recall", lambda key: known)
    monkeypatch.setattr(trial, "available", lambda: False)
    engine, why = trial.planned(plan())
    assert engine.name == "vectorised" and why.startswith("processes 100 ms, vectorised 200 ms")


def test_a_trial_is_known_by_all_that_its_answer_depends_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wide = Net.of(lambda: nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 4)))
    data = small_federation()
    broad = replace(data, x=torch.cat([data.x, data.x], 1))
    plans = [
        plan(), plan(broad), plan(cohort=5), plan(chunk=3), plan(processes=2), plan(threads=2),
        plan(method=FedAvg(small_net(), batch_size=5)), plan(method=FedAvg(wide)),
    ]  # fmt: skip
    keys = [own.key() for own in plans]
    monkeypatch.setattr(trial, "wants_half", lambda: True)
    keys.append(plan().key())
    monkeypatch.setattr(trial, "cores", lambda: 77)
    keys.append(plan().key())
    assert len({*keys}) == 10 and {len(key) for key in keys} == {32}
    assert plan().key() == plan(data=small_federation((9, 9))).key()  # not by how many rows


@pytest.mark.parametrize(
    ("cores", "processes", "threads", "busy", "disturbed"),
    [
        (4, 2, 3, 1.5, False),  # one core is left, and half a one is always busy
        (4, 2, 3, 1.6, True), (4, 3, 2, 1.6, True), (4, 3, 2, 1.5, False),
        (None, 1, 1, 0.5, False), (None, 1, 1, 0.6, True),
    ],
)  # fmt: skip
def test_a_trial_is_disturbed_if_others_use_cores_that_it_needs(
    cores: int | None, processes: int, threads: int, busy: float, disturbed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(trial, "Others", lambda: SimpleNamespace(cores=lambda: busy))
    monkeypatch.setattr(trial, "try_out", lambda plan: {"sequential": 1.0})
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    found = trial._measure(plan(processes=processes, threads=threads))
    assert found == Measured({"sequential": 1.0}, disturbed)


@pytest.mark.parametrize("order", [1, -1])
def test_of_engines_as_fast_as_each_other_the_plain_one_is_taken(order: int) -> None:
    """2 s count as 2 * 0.95 for workers."""
    seconds = {"processes": 2.0, "sequential": 2.0 * 0.95}
    assert fastest(dict([*seconds.items()][::order])) == "sequential"


def test_a_trial_is_of_clients_that_have_rows_and_of_a_round_of_its_turn() -> None:
    data = without_training_rows(small_federation(), 1)
    job = trial_job(plan(data), 3, turn=5)
    assert job.ids == [0, 2, 3] and job.cohort.round == 5
    assert job.training and job.purpose == "train"
    nobody = small_federation((0, 0))
    assert trial_job(plan(nobody, clients=range(2)), 3).ids == [0]


def test_what_was_measured_is_told_with_its_time_and_doubts() -> None:
    at = 86_400.0 * 365 + 3600 + 120  # a year of 365 days after 1970, an hour and two minutes
    assert Measured({}).when == ""
    assert Measured({}, at=at).when == ", measured at 1971-01-01 01:02 UTC"
    busy = " beside other programs; measured again after an hour"
    assert Measured({}, True).when == busy
    assert Measured({}, True, at).when == f", measured at 1971-01-01 01:02 UTC{busy}"


@pytest.mark.parametrize(
    ("age", "disturbed", "counts"),
    [
        (0.0, True, True), (DOUBT - 1, True, True), (DOUBT, True, False), (-1.0, True, False),
        (DOUBT, False, True), (-1.0, False, True),
    ],
)  # fmt: skip
def test_a_disturbed_trial_counts_for_an_hour_and_never_before_it_was_made(
    age: float, disturbed: bool, counts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Measured({"sequential": 1.0}, disturbed)
    with monkeypatch.context() as then:
        then.setattr(time, "time", lambda: 1e6)
        assert keep("key", one) is one
    monkeypatch.setattr(time, "time", lambda: 1e6 + age)
    found = recall("key")
    assert (found == replace(one, at=1e6)) if counts else found is None
    other = Measured({"sequential": 2.0})
    assert keep("key", other).seconds == (one if counts else other).seconds


def test_our_own_seconds_are_those_of_us_and_of_children_that_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(os, "times", lambda: (1.0, 2.0, 4.0, 8.0, 500.0))
    assert others._own_seconds() == 15.0
    monkeypatch.setattr(others, "STAT", tmp_path / "stat")
    (tmp_path / "stat").write_text("cpu odd\n")
    assert others._seconds_of_all() == 0.0
    monkeypatch.delattr(os, "getloadavg")
    assert others.Others().cores() == 0.0


def test_a_client_of_a_net_trial_has_rows_after_those_of_the_one_before() -> None:
    net = Net.of(lambda: nn.Linear(2, 3))
    own = NetTrial.of(net, torch.randn(21, 2), None)
    assert [rows.tolist() for rows in own.rows] == [[*range(7)], [7, 8], [*range(9, 17)]]
    starts = [net.init(client)["weight"].double() for client in range(3)]
    assert all(torch.allclose(a["weight"], b) for a, b in zip(own.starts, starts, strict=True))
    assert own.tolerance == net_trial.EXACT
    single: Any = SimpleNamespace(net=SimpleNamespace(dtype=torch.float32))
    assert NetTrial.tolerance.fget(single) == net_trial.ROUGH  # type: ignore[attr-defined]


def test_some_clients_of_a_net_trial_end_as_among_all() -> None:
    own = NetTrial.of(Net.of(lambda: nn.Linear(2, 3)), torch.randn(21, 2), None)
    everybody = own.train("sequential")
    (first,) = own.train("sequential", 1)
    assert len(everybody) == 3 and torch.equal(first["weight"], everybody[0]["weight"])
    for ours, theirs in zip(everybody, own.wanted(), strict=True):
        assert torch.allclose(ours["weight"], theirs["weight"], atol=1e-12)
    assert own.losses("vectorised") == pytest.approx(own.wanted_losses())


def test_a_net_whose_numbers_are_refused_is_told_why(monkeypatch: pytest.MonkeyPatch) -> None:
    own = NetTrial.of(Net.of(lambda: nn.Linear(2, 3)), torch.randn(21, 2), None)
    refusals = [Refusal(2, "odd", "the first"), Refusal(1, "odd", "another")]
    report = SimpleNamespace(refusals=refusals)
    monkeypatch.setattr(net_trial, "run_round", lambda *args: (None, report))
    with pytest.raises(NetError) as error:
        own.train("sequential")
    assert error.value.message == f"what it learns is refused: {refusals[0]}"


def test_a_twin_is_the_same_net_of_another_type() -> None:
    net = Net.of(lambda: nn.Sequential(nn.Linear(4, 3)), input_shape=(4,))
    twin = _twin(net, torch.float64)
    assert (twin.dtype, twin.make, twin.input_shape) == (torch.float64, net.make, (4,))
    assert (twin.head_module, twin.output) == (net.head_module, net.output)
    assert examples_for(net).shape == (17, 4) and examples_for(net, (2, 4)).shape == (17, 2, 4)
    with pytest.raises(NetError, match="nothing says what the inputs of the net are"):
        examples_for(Net.of(lambda: nn.Linear(4, 3)))


class Watching(nn.Module):
    """A layer, a parameter that nothing uses, and what it knows of each pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.idle = nn.Linear(1, 2, bias=False), nn.Parameter(torch.ones(1))
        self.seen: list[Any] = []

    def forward(self, x: Tensor) -> Tensor:
        now = mode.current()
        key = None if now.key is None else int(now.key)
        self.seen.append((self.training, now.training, now.mapped, key))
        outputs: Tensor = self.layer(x)
        return outputs


def test_the_plain_loop_is_gradient_descent_on_one_batch_after_another() -> None:
    """Of outputs w x, x = 1, the gradient is softmax(w) - (1, 0): of w = 0 that is (-0.5, 0.5)."""
    net = Net.of(Watching, dtype=torch.float64)
    start = {"layer.weight": torch.zeros(2, 1).double(), "idle": torch.ones(1).double()}
    loop = TorchLoop(net, start, 0.5)
    watching: Any = loop.module
    x, y = torch.ones(2, 1).double(), torch.tensor([0, -100])
    assert loop.total_loss(x, y) == pytest.approx(0.6931471805599453)  # of the one label
    batches = [torch.tensor([0]), torch.tensor([0])]
    after = loop.train(x, y, batches, 3, 4)
    first = torch.tensor([0.25, -0.25]).double()
    slope = first.softmax(0) - torch.tensor([1.0, 0.0])
    assert torch.allclose(after["layer.weight"].flatten(), first - 0.5 * slope)
    assert after["idle"].tolist() == [1.0]
    noise = fold(torch.tensor(derive(3, 0, 4, "train", "noise")), 0)
    keys = [int(fold(noise, number)) for number in (1, 2)]
    assert watching.seen == [(False, False, False, None)] + [
        (True, True, False, key) for key in keys
    ]


@pytest.mark.parametrize(("written", "pays"), [(4.0, True), (4.5, False)])
def test_what_is_gained_by_a_step_counts_once_for_each(written: float, pays: bool) -> None:
    """Five steps of 2 s or of 1.5 s: four of them gain 2 s; writing down costs 2 or 2.5 s."""
    pace = Pace(11, plain=2.0, repeated=1.5, written=written, steps=5)
    pace.begin_round()
    assert pace.pays is pays


def test_a_plain_step_is_counted_from_one(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Any] = []
    monkeypatch.setattr(replayed, "run_step", lambda *args: taken.append(args))
    stretch: Any = "stretch"
    steps: Any = ["a", "b", "c"]
    visit = _Visit(stretch, steps)
    vars(visit)["keys"] = ("k0", "k1", "k2")
    visit.step(2)
    assert taken == [("stretch", "c", 3, "k2")]


@pytest.mark.parametrize(("largest", "is_table"), [(9, True), (8, False)])
def test_the_slope_of_a_loss_is_a_table_if_it_has_few_numbers(
    largest: int, is_table: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three classes: nine numbers."""
    monkeypatch.setattr(folding, "_LARGEST", largest)
    slope, scores, labels = torch.ones(2), torch.zeros(2, 3), torch.tensor([0, 2])
    layouts = [Layout.of(value) for value in (slope, scores, labels, slope.sum(), scores)]
    program: Any = SimpleNamespace(
        constants={0: slope / 2}, layouts=layouts, storages=[*range(5)], first=(), operations=()
    )
    folder = folding._Folder(program)
    folder.picked[2] = labels
    args = (Ref(0), Ref(1), Ref(2), None, 0, -100, Ref(3))
    own = folder._loss_slope(RecordedCall(aten.nll_loss_backward.default, args, (), (4,)))
    constant = folder.known[5]
    if is_table:
        assert own.call is aten.index_select.default and own.args == (Ref(5), 0, Ref(2))
        assert torch.equal(constant, -0.5 * torch.eye(3))
    else:
        assert own.args == (*args[:6], Ref(5)) and constant.shape == ()
