"""Small parts of the core, each against what is worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedblocks.core import private_state
from fedblocks.core.aggregate import _apply_rule, merge_groups
from fedblocks.core.errors import UserError
from fedblocks.core.metrics import Metric
from fedblocks.core.numbers import holds_values, numbers_of, structure_of, with_numbers
from fedblocks.core.optimizers import SGD, Adam
from fedblocks.core.option_names import hint_for
from fedblocks.core.order_of_use import check_in_use, last_in_pass, layers_in_use
from fedblocks.core.private_state import Pack, ShardedState, _fits, merge_private, pack_clients
from fedblocks.core.rules import MovingAverage
from fedblocks.core.task import Task
from fedblocks.core.uploads import Upload

REFUSED = [
    (lambda: Task(loss="squared"), 'loss: "squared" is not for classification', "choose from"),
    (lambda: Task(loss="nothing"), 'loss: there is no loss "nothing"', ""),
    (lambda: Task(loss=lambda x: x), "is no function of two", "write def loss(outputs, targets)"),
    (lambda: Task("regression", class_weights=(1.0,)), 'not for "squared"', "leave them out"),
    (lambda: Task("regression", label_smoothing=0.1), 'not for "squared"', "leave them out"),
    (lambda: Task(label_smoothing=1.0), "label_smoothing: 1.0 is not a share", "below 1"),
    (lambda: Task(label_smoothing=-0.1), "label_smoothing: -0.1 is not a share", "below 1"),
    (lambda: Task(class_weights=(1.0, -1.0)), "a weight is negative or no number", "use 0"),
    (lambda: Task(class_weights=(float("inf"),)), "a weight is negative or no number", "use 0"),
    (lambda: Task(metrics=("rmse",)), 'metrics: "rmse" is not for classification', "choose from"),
    (lambda: Task(metrics=("nothing",)), 'there is no metric "nothing"', ""),
    (lambda: Task(metrics=("accuracy", "accuracy")), "accuracy, accuracy has a name twice", "once"),
]


@pytest.mark.parametrize(("make", "message", "fix"), REFUSED, ids=range(len(REFUSED)))
def test_a_task_that_makes_no_sense_is_refused_in_words(make: Any, message: str, fix: str) -> None:
    with pytest.raises(UserError) as refused:
        make()
    assert message in refused.value.message and fix in refused.value.fix


def test_a_task_at_the_edge_of_what_makes_sense_is_taken() -> None:
    own = Metric("share", lambda outputs, targets: 0.0)
    task = Task(label_smoothing=0.0, class_weights=(0.0, 1.0), metrics=("accuracy", own))
    assert [task.class_weights, Task(label_smoothing=0.99).label_smoothing] == [(0.0, 1.0), 0.99]


def test_numbers_of_a_record_are_read_and_put_in_their_place() -> None:
    adam = Adam(betas=(0.5, 0.75))
    numbers = numbers_of(adam)
    assert (numbers["betas.0"], numbers["betas.1"]) == (0.5, 0.75)
    assert numbers_of((1.0, 2, (3.0,))) == {"0": 1.0, "2.0": 3.0}  # 2 is no fraction
    other = with_numbers(adam, {"betas.1": 0.25})
    assert (other.betas, adam.betas) == ((0.5, 0.25), (0.5, 0.75))
    assert with_numbers((1.0, 2.0), {"0": 5.0}) == (5.0, 2.0)
    assert structure_of(adam) == structure_of(other) != structure_of(SGD())
    assert structure_of(SGD(nesterov=True, momentum=0.5)) != structure_of(SGD(momentum=0.5))


def test_a_function_may_hold_values_in_a_closure_a_default_or_around_it() -> None:
    factor = 2.0

    def plain(x: float) -> float:
        return x

    def with_default(x: float, by: float = 2.0) -> float:
        return by * x

    def with_keyword(x: float, *, by: float = 2.0) -> float:
        return by * x

    assert not holds_values(plain)
    assert holds_values(with_default) and holds_values(with_keyword)
    assert holds_values(lambda x: factor * x) and holds_values(partial(plain))


def test_what_others_call_an_option_is_translated() -> None:
    options = ("lr", "epochs", "batch_size", "optimizer")
    assert hint_for("mu", (), "Local") == "leave it out: Local has no options"
    assert hint_for("local_epochs", options, "x") == 'here it is called "epochs"'
    assert hint_for("momentum", options, "x") == (
        'give it to the optimizer: optimizer = {name = "sgd", momentum = ...}, '
        "in Python optimizer=SGD(momentum=...)"
    )
    assert "optimizer" not in hint_for("momentum", ("lr",), "x")
    assert '"lr"' not in hint_for("mu", options, "x")


def upload(ids: list[int], values: list[float], name: str = "model") -> Upload:
    copies = {"w": torch.tensor(values)[:, None, None]}  # [clients, slots, ...]
    weights = torch.tensor([[float(i + 1)] for i in ids])
    first = torch.tensor(ids)
    return Upload(name, first, copies, weights, per_slot=True, rule=MovingAverage())


def test_uploads_of_groups_to_one_block_are_in_the_order_of_clients() -> None:
    groups = {"a": {"model": upload([0, 3], [10.0, 13.0])}, "b": {"model": upload([1], [11.0])}}
    (merged,) = merge_groups(groups)
    assert merged.ids.tolist() == [0, 1, 3]
    assert merged.copies["w"].flatten().tolist() == [10.0, 11.0, 13.0]
    assert merged.weights.flatten().tolist() == [1.0, 2.0, 4.0]
    apart = {"a": groups["a"], "b": {"own": upload([1], [11.0], "own")}}
    assert [one.name for one in merge_groups(apart)] == ["model", "own"]


def test_a_rule_leaves_slots_alone_that_nobody_wrote() -> None:
    old, mean = {"w": torch.tensor([1.0, 1.0])}, {"w": torch.tensor([3.0, 1.0])}
    written = torch.tensor([True, False])
    rule = MovingAverage(beta=0.5)
    _, new = _apply_rule(rule, rule.memory(old), old, mean, written)
    assert new["w"].tolist() == [2.0, 1.0]


def blocks(value: float, width: int = 2, dtype: torch.dtype = torch.float32) -> Any:
    return {"own": {"a": torch.full((width,), value, dtype=dtype), "b": torch.zeros(1)}}


def test_a_row_fits_a_pack_of_the_same_names_shapes_and_kinds_only() -> None:
    (pack,) = pack_clients({4: blocks(4.0), 2: blocks(2.0)})
    assert pack.ids == (2, 4) and pack.blocks["own"]["a"].tolist() == [[2.0] * 2, [4.0] * 2]
    assert _fits(pack, blocks(9.0))
    assert not _fits(pack, blocks(9.0, width=3))  # "b" still fits
    assert not _fits(pack, blocks(9.0, dtype=torch.float64))
    assert not _fits(pack, {"other": blocks(9.0)["own"]})
    assert not _fits(pack, {"own": {"a": torch.zeros(2)}})
    assert len(pack_clients({0: blocks(0.0), 1: blocks(1.0, width=3)})) == 2


def test_what_clients_keep_is_merged_and_packed_once_they_are_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, changes = {0: blocks(0.0), 1: blocks(1.0)}, {1: blocks(7.0), 2: blocks(2.0)}
    monkeypatch.setattr(private_state, "MANY", 4)
    few = merge_private(before, changes)
    assert isinstance(few, dict) and sorted(few) == [0, 1, 2]
    assert float(few[1]["own"]["a"][0]) == 7.0
    monkeypatch.setattr(private_state, "MANY", 3)
    many = merge_private(before, changes)
    assert isinstance(many, ShardedState) and len(many) == 3
    again = merge_private(many, {0: blocks(5.0)})
    assert [float(again[i]["own"]["a"][0]) for i in range(3)] == [5.0, 7.0, 2.0]
    assert [float(many[i]["own"]["a"][0]) for i in range(3)] == [0.0, 7.0, 2.0]  # unchanged


class Crossed(nn.Module):
    """Declares its layers in another order than it uses them, and one that it does not."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.idle, self.first = (nn.Linear(3, 3) for _ in range(3))
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.last(self.first(x)), self.idle(x)


def test_layers_are_in_the_order_of_use_and_those_in_use_only() -> None:
    assert layers_in_use(Crossed(), 0) == ["first", "last"]
    assert layers_in_use(Crossed(), 1) == ["idle"]
    assert layers_in_use(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)), None) == [
        "0", "2",
    ]  # fmt: skip
    assert last_in_pass(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.zeros(1, 2)) == "0"
    check_in_use("last", ["first", "last"])
    check_in_use("last", None)
    with pytest.raises(UserError, match='do not depend on the head of the net, "idle"'):
        check_in_use("idle", ["first", "last"])


def test_a_pack_is_found_by_its_clients_alone() -> None:
    pack = Pack((2, 4), {"own": {"a": torch.tensor([[2.0], [4.0]])}})
    assert 2 in pack and 4 in pack and 3 not in pack and 5 not in pack
    assert pack.row(4)["own"]["a"].tolist() == [4.0]
    assert replace(pack, ids=(3, 4)).row(3)["own"]["a"].tolist() == [2.0]
