"""What only one number, order or flag tells apart: in checks of nets, in trials and in programs."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedblocks.core.errors import NetError
from fedblocks.core.frozen_hash import content_hash
from fedblocks.core.net import Net
from fedblocks.engines import behaviour, close_round
from fedblocks.engines.auto import trial
from fedblocks.engines.courses import _facts_of_rate
from fedblocks.engines.job import Job
from fedblocks.engines.lanes.likeness import _structure
from fedblocks.engines.net_check import company, merging
from fedblocks.engines.net_check.seeding import require_numbers
from fedblocks.engines.net_check.trial import _precise
from fedblocks.engines.rehearsal import Rehearsal
from fedblocks.engines.replay.recording import Recorder
from fedblocks.engines.round import Experiment
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.steadiness import _pairs
from fedblocks.methods.fedavg import FedAvg
from fedblocks.methods.scaffold import Scaffold
from fedblocks.testing.federations import small_federation, small_net

NET, DATA = small_net(), small_federation()


@pytest.mark.parametrize(
    ("seconds", "turns"),
    [
        ([0.75], 4),  # 1.5 * 0.5; four turns of 1.25 s are more than 4 s
        ([0.76], 2),
        ([0.9, 0.75], 4),  # the fewest seconds count
        ([0.6, 0.9, 0.9], 4),
    ],
)
def test_who_is_one_and_a_half_times_as_slow_at_best_stays(
    seconds: list[float], turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = [*seconds, *seconds[-1:] * 8][::-1]
    taken: list[str] = []

    def take(engine: str, _: Any) -> float:
        taken.append(engine)
        return 0.5 if engine == "quick" else mine.pop()

    monkeypatch.setattr(trial, "measure_seconds", take)
    names: Any = {name: name for name in ("quick", "near")}
    assert trial._in_turn(names, lambda turn: None) == {"quick": 0.5, "near": min(seconds)}
    assert taken.count("near") == turns


def test_starts_are_written_down_by_the_names_of_their_blocks() -> None:
    method = Scaffold(NET)
    experiment = Experiment.of(method, DATA)
    sent = experiment.training_job("all", [0], experiment.start()).sent
    names = sorted([*sent.blocks])
    assert names != [*sent.blocks]
    found = behaviour.behaviour_of(experiment, "all", 0)
    single = {name: {k: v[0] for k, v in sent.blocks[name].items()} for name in names}
    assert found and found["start"] == [content_hash(single[name]) for name in names]


def test_bytes_that_were_fetched_take_the_place_of_the_others() -> None:
    experiment = Experiment.of(FedAvg(NET), DATA)
    job = experiment.training_job("all", [1, 2], experiment.start())
    own = close_round.ClientResults.of(job, Sequential().train(job))
    down, up = {"model": torch.tensor([1, 2])}, {"model": torch.tensor([3, 4])}
    found = close_round._with_bytes(own, down, up)
    assert found.trained.bytes_down is down and found.bytes_up is up and found.job is job


@dataclass(frozen=True)
class OfRun:
    """A rate over the rounds of a run."""

    start: float
    rounds: int

    def over(self, rounds: int) -> OfRun:
        return replace(self, rounds=rounds)

    def __call__(self, round: int) -> float:
        return self.start / (1 + round)


def test_the_rounds_of_a_rate_that_goes_over_the_run_are_no_fact() -> None:
    wanted = {"lr in round 1": 0.5, "lr.start": 0.5}
    assert dict(_facts_of_rate(OfRun(0.5, 7))) == wanted
    assert dict(_facts_of_rate(0.25)) == {"lr": 0.25}


@pytest.mark.parametrize(
    ("vocabulary", "has_words"),
    [({"oov": 1, "pad": 0}, True), ({"pad": 0}, False), (["oov"], False), (None, False)],
)
def test_special_words_are_those_of_a_vocabulary_with_a_word_for_unknown_ones(
    vocabulary: Any, has_words: bool
) -> None:
    job: Any = SimpleNamespace(data=SimpleNamespace(about={"vocabulary": vocabulary}))
    words: Any = Job.words.fget(job)  # type: ignore[attr-defined]
    assert words == (vocabulary if has_words else {})


@dataclass(frozen=True)
class Remembering:
    """An optimizer that names what it remembers in an order of its own."""

    momentum: float = 0.5

    def memory(self, params: list[Tensor]) -> Mapping[str, list[Tensor]]:
        return {"velocity": params, "mean": params, "square": params}


def test_the_order_of_what_optimizers_remember_makes_no_difference() -> None:
    one: Any = Remembering()
    assert _structure(one)[1] == ["mean", "square", "velocity"]
    plain: Any = len
    assert _structure(plain) is plain


def test_warnings_of_a_trial_of_examples_are_not_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    def warn(net: Any, x: Tensor) -> str:
        warnings.warn("odd", UserWarning, stacklevel=1)
        assert not torch.is_grad_enabled()
        return "because"

    monkeypatch.setattr(company, "_why", warn)
    monkeypatch.setattr(company, "_found", {})
    net = Net.of(lambda: nn.Sequential(nn.Linear(2, 2), nn.Softmax(0)))
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        assert company.mixes_examples(net, torch.zeros(3, 2)) == "because"
    assert not heard


def test_effects_are_measured_by_the_size_of_outputs_and_not_by_their_sign(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """1e-4 of 1 + 99 is 0.01."""
    theirs = torch.tensor([-99.0, 0.0])
    for change, other in ((0.009, False), (0.011, True)):
        outputs = iter([theirs, theirs + change, theirs])
        net: Any = lambda params, x, outputs=outputs: next(outputs)
        found = merging._have_other_effects(net, torch.zeros(1), [{}, {}, {}], False)
        assert found is other


@pytest.mark.parametrize(
    ("values", "named"),
    [([1.0, 2.0], False), ([1.0, torch.nan], True), ([torch.nan] * 2, True), ([torch.inf], False)],
)
def test_a_net_that_starts_with_one_nan_is_refused(values: list[float], named: bool) -> None:
    start = {"fine": torch.ones(1), "odd": torch.tensor(values)}
    net: Any = SimpleNamespace(init=lambda seed: start)
    if not named:
        require_numbers(net)
        return
    with pytest.raises(NetError, match='the net starts with NaN in "odd", from which') as told:
        require_numbers(net)
    assert "correct how the module draws it" in str(told.value)


class Shifted(nn.Linear):
    """Adds numbers that no training changes, drawn anew in each module."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.register_buffer("shift", torch.rand(2))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.shift


def test_a_net_is_checked_with_the_constants_that_it_has_now() -> None:
    net = Net.of(Shifted)
    net.set_constants({"shift": torch.tensor([0.25, -3.0])})
    twin, _ = _precise(net, torch.zeros(3, 2))
    assert twin.constants["shift"].tolist() == [0.25, -3.0]
    assert twin.constants["shift"].dtype == torch.float64


def test_of_clients_of_the_same_size_the_first_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty clients, with 2 and 1 rows in turn: the odd ones are the smaller."""
    tried: list[int] = []

    def fail(self: Rehearsal, job: Any, member: int) -> list[str]:
        tried.append(member)
        raise ValueError(f"of {member}")

    sizes = np.array([2, 1] * 20)
    experiment: Any = SimpleNamespace(training_job=lambda *_: SimpleNamespace(sizes=sizes))
    monkeypatch.setattr(Rehearsal, "_try_reads", lambda self: None)
    monkeypatch.setattr(Rehearsal, "_play", fail)
    with pytest.raises(ValueError, match=r"of 0$"):
        Rehearsal(experiment, "all", range(40), None, True).play()  # type: ignore[arg-type]
    assert tried == [0, 38, 1]


def test_an_argument_that_lies_otherwise_afterwards_is_noted_so() -> None:
    x = torch.zeros(2, 3)
    with Recorder([x]) as recorder:
        x.t_()
    assert recorder.layouts[0].shape == (3, 2) and recorder.layouts[0].stride == (1, 3)


def test_templates_are_made_before_the_first_round(monkeypatch: pytest.MonkeyPatch) -> None:
    placed: list[Any] = []
    monkeypatch.setattr(Net, "place", lambda self, device: placed.append((self, device)))
    other = small_net()
    Experiment({"a": FedAvg(NET), "b": FedAvg(other)}, DATA, 0, ["a", "b"] * 3)
    assert placed == [(NET, torch.device("cpu")), (other, torch.device("cpu"))]


@pytest.mark.parametrize("kind", [list, tuple, lambda pair: {"a": pair[0], "b": [pair[1]]}])
def test_tensors_stand_beside_each_other_in_the_order_of_the_answers(kind: Any) -> None:
    one, other = torch.zeros(2), torch.ones(2)
    pairs = _pairs(kind([one, one]), kind([other, other]))
    assert [(a.tolist(), b.tolist()) for a, b in pairs] == [([0, 0], [1, 1])] * 2
