"""What is written down of a method's first step, and which difference is another behaviour."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from fedblocks.core.net import Net
from fedblocks.core.phases import Phase, Pull, Update
from fedblocks.engines import behaviour, courses, first_step
from fedblocks.engines.behaviour import _are_close, _filled, _flat, _is_close, behaviour_of
from fedblocks.engines.courses import courses_of, other_course
from fedblocks.engines.first_step import _ways, other_move
from fedblocks.engines.round import Experiment
from fedblocks.methods.ditto import Ditto
from fedblocks.methods.fedavg import FedAvg
from fedblocks.testing.federations import small_federation, small_net, without_training_rows

NAN, INF = float("nan"), float("inf")


def moves(weights: float = 0.0, **stages: dict[str, float]) -> dict[str, Any]:
    return {"weights": weights, "lengths": stages}


@pytest.mark.parametrize(
    ("now", "stage"),
    [
        ({"a": -10.0, "b": 1.4}, ""),  # 0.05 of the longest way, 10, is 0.5
        ({"a": -10.0, "b": 1.6}, "phases"),
        ({"a": -10.0, "b": 0.4}, "phases"),
        ({"a": -10.4, "b": 1.0}, ""),
        ({"a": 10.0, "b": 1.0}, "phases"),
        ({"a": -10.0}, "phases"),
        ({"a": -10.0, "b": 1.0, "c": 0.0}, "phases"),
        ({"a": -10.0, "b": NAN}, "phases"),
    ],
)
def test_a_stage_moves_as_before_up_to_a_twentieth_of_its_longest_way(
    now: dict[str, float], stage: str
) -> None:
    before = moves(phases={"a": -10.0, "b": 1.0}, finish={"a": 1.0})
    assert other_move(before, moves(phases=now, finish={"a": 1.0})) == stage


def test_a_small_way_may_differ_by_what_single_precision_leaves_of_the_weights() -> None:
    """A millionth of weights of 1000 is 0.001; a way of 0 has no share of its own."""
    before = moves(1000.0, phases={}, writes={"a": 0.0})
    assert other_move(before, moves(phases={}, writes={"a": 0.0009})) == ""
    assert other_move(before, moves(phases={}, writes={"a": 0.0011})) == "writes"
    assert other_move(before, moves(phases={})) == "writes"
    assert other_move(moves(phases={}), moves()) == ""


def test_a_way_that_was_no_number_is_not_compared_and_hides_no_other() -> None:
    before = moves(phases={"a": NAN, "b": INF, "c": 2.0})
    assert other_move(before, moves(phases={"a": 1.0, "b": 7.0, "c": 2.05})) == ""
    assert other_move(before, moves(phases={"a": 1.0, "b": 7.0, "c": 2.15})) == "phases"


def test_where_nothing_moved_and_all_weights_are_zero_the_part_along_is_zero() -> None:
    zero = {"a": {"w": torch.zeros(2)}}
    ways = _ways(zero, zero, zero, 0.0)
    assert ways == {"a": 0.0, "a, along": 0.0} and math.copysign(1, ways["a, along"]) == 1


def test_the_part_along_training_is_measured_by_a_ten_thousandth_of_the_weights() -> None:
    """A way of (3, 4) where training went (0, 2): 8 / (2 + 0.0001 * 20000)."""
    start, own, end = ({"a": {"w": torch.tensor(v)}} for v in ([0.0, 0.0], [0.0, 2.0], [3.0, 4.0]))
    ways = _ways(end, start, own, 20_000.0)
    assert ways == {"a": 5.0, "a, along": pytest.approx(2.0)}
    other = {"a": {"v": torch.zeros(2)}}
    assert _ways(end, start, other, 1.0) == {"a": 5.0}  # training moved other tensors


class Sending(Ditto):
    """Ditto, whose clients say with what weight they are counted."""

    def writes(self, blocks: Any, client: Any) -> Any:
        return {"shared": torch.tensor(-3.0)}


def test_a_first_step_takes_eight_rows_of_the_first_batch_of_each_phase() -> None:
    data = small_federation([10, 7])
    experiment = Experiment.of(Sending(small_net(), batch_size=9, epochs=2), data, 0)
    state = experiment.start()
    job = experiment.training_job("all", [0], state)
    seen: list[list[list[int]]] = []

    def train(phases: Any, start: Any, local: Any, orders: Any, runner: Any) -> Any:
        assert runner is first_step.step_by_step
        seen.append([[len(step.index) for step in order] for order in orders])
        return start

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(first_step, "train", train)
        found = first_step.moves_of(job, state)
    assert seen == [[[8]] * len(job.phases)]
    lengths = found["lengths"]
    assert [*lengths] == ["phases", "finish", "writes", "conclude"]
    assert set(lengths["phases"].values()) == {0.0} and lengths["writes"] == {"shared": 3.0}
    norms = [
        math.sqrt(sum(float(v.square().sum()) for v in block.values()))
        for block in job.sent.blocks.values()
    ]
    assert found["weights"] == pytest.approx(max(norms))


@pytest.mark.parametrize(
    ("one", "other", "near", "close"),
    [
        (1.0, 1.5, 0.5, True), (1.0, 1.6, 0.5, False), (1.5, 1.0, 0.4, False),
        (INF, INF, 0.0, True), (INF, -INF, 9.0, False), (NAN, NAN, 0.0, True),
        (NAN, 1.0, 9.0, False), (1.0, NAN, 9.0, False), (NAN, INF, 9.0, False),
        (1.0, INF, INF, False),
    ],
)  # fmt: skip
def test_numbers_are_close_or_undefined_alike(
    one: float, other: float, near: float, close: bool
) -> None:
    assert _is_close(one, other, near) is close


def test_numbers_by_name_are_measured_by_the_largest_of_those_before() -> None:
    flat = _flat({"a": [-1000.0, 0.0], "b": 2.0})
    assert flat == {"a/0": -1000.0, "a/1": 0.0, "b/0": 2.0}
    assert _are_close(flat, {**flat, "b/0": 2.99}) and not _are_close(flat, {**flat, "b/0": 3.01})
    assert not _are_close(flat, {"a/0": -1000.0, "a/1": 0.0})
    assert _are_close({"a": NAN}, {"a": NAN}) and _are_close({}, {})
    assert not _are_close({"a": INF, "b": 0.0}, {"a": INF, "b": 1e-3})


def test_what_is_zero_is_filled_with_small_numbers_and_nothing_else_is() -> None:
    zeros = torch.zeros(2, 2)
    expected = [[math.cos(0) / 8, math.cos(1) / 8], [math.cos(2) / 8, math.cos(3) / 8]]
    assert torch.allclose(_filled("w", zeros), torch.tensor(expected))
    for name, kept in (
        ("w", torch.tensor([0.0, 1.0])),
        ("bn.running_mean", torch.zeros(2)),
        ("n", torch.zeros(2, dtype=torch.long)),
    ):
        assert _filled(name, kept) is kept
    blocks = behaviour._without_zeros({"a": {"w": zeros, "bn.running_mean": zeros}})
    assert blocks["a"]["bn.running_mean"] is zeros and blocks["a"]["w"].all()


def recorded(**more: Any) -> dict[str, Any]:
    views = {"personal": [1.0, 2.0]}
    return {"start": [], "views": views, "losses": {}, "courses": {}, **more}


def test_what_differs_is_said_part_by_part_and_what_a_record_lacks_is_not_compared() -> None:
    net = Net.of(lambda: nn.Linear(1, 1))
    hidden, other = {"hidden": {"personal": [1.0]}}, {"hidden": {"personal": [2.0]}}
    steps = {"moves": moves(phases={"a": 1.0})}, {"moves": moves(phases={"a": 2.0})}
    said = lambda before, now: behaviour.difference(recorded(**before), recorded(**now), net, "Ann")
    assert said(hidden, hidden) == said(hidden, {}) == said({}, other) == ""
    assert said(hidden, other) == (
        'from the same start it gives another output for client "Ann" once what is zero has learned'
    )
    assert said(steps[0], steps[0]) == said(steps[0], {}) == said({}, steps[1]) == ""
    assert said(*steps) == (
        'from the same start its first step moves blocks otherwise (`phases`) for client "Ann"'
    )
    course = {"courses": {"phases": {"phase 1, epochs": 1.0}}}
    longer = {"courses": {"phases": {"phase 1, epochs": 2.0}}}
    assert said(course, longer) == "`phases`, phase 1, epochs: was 1, and is 2"


def test_a_method_is_tried_on_its_first_client_with_rows_and_not_if_it_is_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = small_net()
    experiment = Experiment.of(FedAvg(net, lr=0.1), without_training_rows(small_federation(), 0), 5)
    (found,) = behaviour.behaviours_of(experiment).values()
    assert found["client"] == 1 and [*found["losses"]] == ["1.1"]
    assert found.keys() >= {"start", "views", "courses", "hidden", "moves"}
    assert behaviour_of(experiment, "all", 0) is None
    size = net.size() + sum(value.numel() for value in net.base.values())
    monkeypatch.setattr(behaviour, "MOST", size)
    assert behaviour_of(experiment, "all", 1) == found
    monkeypatch.setattr(behaviour, "MOST", size - 1)
    assert behaviour_of(experiment, "all", 1) is None
    assert behaviour.behaviours_of(experiment) == {}


def test_a_method_that_fails_is_left_out_and_its_server_alone_leaves_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    experiment = Experiment.of(FedAvg(small_net()), small_federation(), 0)

    def fail(*args: Any) -> Any:
        raise ValueError("odd")

    monkeypatch.setattr(behaviour, "moves_of", fail)
    found = behaviour_of(experiment, "all", 2)
    assert found is not None and "moves" not in found and "hidden" in found
    monkeypatch.setattr(behaviour, "_without_zeros", fail)
    found = behaviour_of(experiment, "all", 2)
    assert found is not None and "hidden" not in found and "views" in found
    monkeypatch.setattr(behaviour, "courses_of", fail)
    assert behaviour_of(experiment, "all", 2) is None


def loss(blocks: Any, batch: Any) -> Any:
    """Never called here."""


class Decay:
    """A learning rate of each round."""

    def __call__(self, round: int) -> float:
        return 1 / (1 + round)


def test_facts_of_local_training_are_written_down_with_their_places() -> None:
    step = Update(("a", "b"), loss, 0.5, pull=Pull("a", "a", 2.0), repeat=3, clip_norm=4)
    phases = [
        Phase((step,), epochs=2),
        Phase((Update(("a",), loss, Decay()),), steps=7, on="query"),
    ]
    method: Any = SimpleNamespace(phases=lambda: phases, adaptation=list, joining=None)
    found = courses_of(method)
    assert found.keys() == {"phases", "adaptation"} and found["adaptation"] == {}
    facts = {k: v for k, v in found["phases"].items() if "optimizer" not in k}
    one, two = "phase 1, step 1, ", "phase 2, step 1, "
    assert facts == {
        "phase 1, epochs": 2.0, "phase 1, steps": "none", "phase 1, on": "all",
        "phase 1, begin": "no", one + "blocks": "a, b", one + "loss": "yes", one + "repeat": 3.0,
        one + "project": "no", one + "clip_norm": 4.0, one + "lr": 0.5, one + "pull": "yes",
        one + "pull.block": "a", one + "pull.to": "a", one + "pull.strength": 2.0,
        one + "pull.live": "False",
        "phase 2, epochs": 1.0, "phase 2, steps": 7.0, "phase 2, on": "query",
        "phase 2, begin": "no", two + "blocks": "a", two + "loss": "yes", two + "repeat": 1.0,
        two + "project": "no", two + "clip_norm": "none", two + "pull": "no",
        two + "lr in round 1": 1.0, two + "lr in round 2": 1 / 2, two + "lr in round 6": 1 / 6,
        two + "lr in round 21": 1 / 21, two + "lr in round 101": 1 / 101,
    }  # fmt: skip
    assert found["phases"][one + "optimizer"] == "SGD"


def test_facts_are_the_same_up_to_a_millionth_and_the_first_other_one_is_named() -> None:
    before = {"phases": {"lr": 2.0, "on": "all"}, "joining": {"lr": 0.0}}
    same = {"phases": {"lr": 2.0 + 1.9e-6, "on": "all"}}
    assert other_course(before, same) == "" == other_course({}, before)
    assert courses.NEAR == 1e-6
    for now, said in (
        ({"lr": 2.0 + 2.1e-6, "on": "all"}, "lr: was 2, and is 2"),
        ({"lr": 2.0}, "on: was all, and is not there"),
        ({"lr": 2.0, "on": "all", "pull": "yes"}, "pull: was not there, and is yes"),
        ({"lr": "none", "on": "all"}, "lr: was 2, and is none"),
    ):
        assert other_course(before, {"phases": now}) == f"`phases`, {said}"  # type: ignore[dict-item]
