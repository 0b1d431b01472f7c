"""Limits and remarks before the first round, on both sides of each: worked by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedblocks.config.model import Config
from fedblocks.config.options import Table
from fedblocks.core.blocks import Pool, Shared
from fedblocks.core.errors import UserError
from fedblocks.core.net import Net
from fedblocks.core.samplers import UniformSampler
from fedblocks.core.task import Task
from fedblocks.data.federation import Federation
from fedblocks.runs import sampling as samplings
from fedblocks.runs.build import _cohort, _large_batches, _spare_slots, first_inputs
from fedblocks.runs.experiment import _check_weights, _members, _try_net
from fedblocks.runs.heads import head_notes
from fedblocks.runs.sampling import Sampling, _try_rounds
from fedblocks.runs.starts import start_notes
from fedblocks.runs.storage.record import Note


@pytest.mark.parametrize(
    ("size", "clients", "expected"),
    [(0.5, 7, 4), (0.5, 5, 2), (0.01, 10, 1), (1.0, 6, 6), (3, 6, 3), (6, 6, 6)],
)
def test_a_cohort_is_a_share_of_the_clients_or_a_number(
    small: Table, size: float | int, clients: int, expected: int
) -> None:
    """Half of 7 is 3.5 and of 5 is 2.5: Python rounds them to even numbers; somebody takes part."""
    assert _cohort(Config.of({**small, "cohort": {"size": size}}), clients) == expected


def test_a_cohort_larger_than_all_clients_is_refused(small: Table) -> None:
    with pytest.raises(UserError, match="7 clients a round, but there are 6") as error:
        _cohort(Config.of({**small, "cohort": {"size": 7}}), 6)
    assert error.value.fix == "use at most 6"


@pytest.mark.parametrize(
    ("rows", "batches", "said"),
    [
        ([3, 7], [8, 9], "batch_size = 8, but no client has more than 7 training rows"),
        ([1, 1], [8], "batch_size = 8, but no client has more than 1 training row"),
        ([3, 8], [8, 9], ""),
        ([0, 0], [8], ""),
    ],
)
def test_batches_larger_than_all_clients_are_remarked_on(
    rows: list[int], batches: list[int], said: str
) -> None:
    methods = {str(size): SimpleNamespace(batch_size=size) for size in batches}
    experiment: Any = SimpleNamespace(methods=methods)
    data: Any = SimpleNamespace(train=SimpleNamespace(sizes=np.array(rows)))
    notes = [f"{said}: each client trains on all its rows at once"] if said else []
    assert [note.text for note in _large_batches(experiment, data)] == notes


def test_more_slots_than_clients_are_remarked_on() -> None:
    part = Net.of(lambda: nn.Linear(1, 1)).whole
    method: Any = SimpleNamespace(blocks=lambda: {"a": Shared(part), "b": Pool(part, 3)})
    assert _spare_slots(method, 3) == []
    said = 'block "b" has 3 slots for 2 clients; some may never be used'
    assert _spare_slots(method, 2) == [said]


def federation(**changes: Any) -> Federation:
    usual: dict[str, Any] = {
        "x": np.arange(24, dtype="float32").reshape(12, 2),
        "y": np.arange(12) % 3,
        "users": np.repeat(np.arange(3), 4),
        "tags": {"kind": [4, 7, 4]},
    }
    return Federation.from_users(**{**usual, **changes})


def test_some_first_inputs_are_looked_at_or_all_of_a_few() -> None:
    data = federation()
    assert first_inputs(data, 2).tolist() == [[0.0, 1.0], [2.0, 3.0]]
    assert len(first_inputs(data, 12)) == len(first_inputs(data, 99)) == 12


def test_a_net_has_as_many_outputs_as_there_are_classes() -> None:
    net = lambda outputs: Net.of(lambda: nn.Linear(2, outputs))
    assert isinstance(_try_net(net(3), "own", federation()), Net)
    with pytest.raises(UserError) as error:
        _try_net(net(4), "own", federation())
    assert error.value.message == (
        'net "own" turns two inputs of shape [2] (float32) into [2, 4]; 3 classes need [2, 3]'
    )
    assert error.value.fix == "give the net 3 outputs, one for each class"
    with pytest.raises(UserError, match=r'net "own" cannot take inputs of shape \[2\] \(float32\)'):
        _try_net(Net.of(lambda: nn.Linear(5, 3)), "own", federation())


def test_a_single_example_is_enough_to_try_a_net() -> None:
    alone = federation(x=np.ones((1, 2), "float32"), y=[0], users=[0], tags={})
    net = Net.of(lambda: nn.Linear(2, 1))
    assert _try_net(net, "own", alone) is net


@pytest.mark.parametrize(("weights", "fits"), [((), True), ((1, 2, 3), True), ((1, 2), False)])
def test_weights_of_classes_are_as_many_as_these(weights: tuple[float, ...], fits: bool) -> None:
    data: Any = SimpleNamespace(task=Task(class_weights=weights), classes=3)
    if fits:
        _check_weights(data)
    else:
        with pytest.raises(UserError, match="has 2 numbers for 3 outputs"):
            _check_weights(data)


def test_members_of_a_group_are_named_or_share_a_tag(small: Table) -> None:
    config, data = Config.of(small), federation()
    group: Any = lambda **own: SimpleNamespace(**{"tag": None, "clients": [], "value": 0, **own})
    assert _members(config, "a", group(clients=[0, 2]), data) == [0, 2]
    assert _members(config, "a", group(tag="kind", value=4), data) == [0, 2]
    assert _members(config, "a", group(tag="kind", value=7), data) == [1]
    with pytest.raises(UserError, match="no client has kind = 5") as error:
        _members(config, "a", group(tag="kind", value=5), data)
    assert error.value.fix == "choose from 4, 7"
    with pytest.raises(UserError, match='the data have no tag "king"') as error:
        _members(config, "a", group(tag="king", value=5), data)
    assert "kind" in error.value.fix


class Listed:
    """A sampler that says what it was told to, and in which rounds it was asked."""

    def __init__(self, choose: Any) -> None:
        self.choose, self.asked = choose, []  # type: ignore[var-annotated]

    def __call__(self, candidates: Any) -> list[int]:
        self.asked.append(candidates.round)
        return list(self.choose(candidates))


def sampling_with(choose: Any, rows: int = 5, count: int = 2) -> tuple[Sampling, Listed]:
    sampler = Listed(choose)
    sizes = np.full(4, rows)
    return Sampling(sampler, [0, 1, 3], sizes, ["a", "b", "c", "d"], count, 9), sampler


def test_a_sampler_is_tried_twice_on_ten_rounds_and_then_until_somebody_is_chosen() -> None:
    sampling, sampler = sampling_with(lambda own: own.ids[:1])
    _try_rounds(sampling, 99)
    assert sampler.asked == [number for round in range(1, 11) for number in (round, round)] + [1]
    sampling, sampler = sampling_with(lambda own: own.ids[:1])
    _try_rounds(sampling, 3)
    assert sampler.asked == [1, 1, 2, 2, 3, 3, 1]


@pytest.mark.parametrize(("first", "rounds", "refused"), [(5, 5, False), (6, 5, True)])
def test_a_sampler_that_chooses_nobody_in_the_rounds_of_a_run_is_refused(
    first: int, rounds: int, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose = lambda own: own.ids[:1] if own.round >= first else []
    if not refused:
        _try_rounds(sampling_with(choose)[0], rounds)
        monkeypatch.setattr(samplings, "MOST_EMPTY", first - 1)
    with pytest.raises(UserError, match="chooses nobody in any round"):
        _try_rounds(sampling_with(choose)[0], rounds)
    _try_rounds(sampling_with(choose, rows=0)[0], rounds)  # a real federation: nobody knows


def test_everybody_takes_part_without_a_draw_where_all_are_asked_for() -> None:
    usual = Sampling(UniformSampler(), [0, 1, 3], np.full(4, 5), ["a"] * 4, 3, 9)
    assert usual.cohort(0) is usual.clients
    sampling, sampler = sampling_with(lambda own: own.ids, count=3)
    assert sampling.cohort(4) == [0, 1, 3] and sampler.asked == [5]
    assert sampling_with(lambda own: own.ids[: own.count], count=9)[0].cohort(0) == [0, 1, 3]
    assert sampling.content_hash == ""
    sampler.content_hash = "abc"  # type: ignore[attr-defined]
    assert sampling.content_hash == "abc"


class Backwards(nn.Module):
    """Declares its head first."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 4)
        self.body = nn.Linear(2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x)) if x is not None else x


def test_the_head_of_a_net_is_named_and_doubted_where_another_layer_runs_last() -> None:
    x = torch.zeros(3, 2)
    net: Any = Net.of(Backwards)
    assert head_notes([net], x) == []  # nobody has cut it
    cut = SimpleNamespace(
        is_cut=True,
        head_module="body",
        named_head=None,
        layers_in_use=None,
        template=net.template,
        dtype=torch.float32,
    )
    fine = SimpleNamespace(**{**vars(cut), "named_head": "body"})
    nets: Any = [cut, cut, fine]
    named, doubt = head_notes(nets, x)
    assert named == Note('head of the net: "body"') and doubt.level == "warning"
    assert 'but "head" runs last: name it, Net.of(..., head="head")' in doubt.text
    assert head_notes([fine], x) == [named]  # type: ignore[list-item]


def test_notes_on_starts_are_said_once_for_all_nets() -> None:
    torch.manual_seed(0)
    fresh, trained = nn.Linear(8, 8), nn.Linear(8, 8)
    with torch.no_grad():
        trained.weight.mul_(5)
    net = Net.of(fresh)
    (note,) = start_notes([net, net])
    assert note.level == "info" and "keep_weights=True" in note.text
    assert [note.level for note in start_notes([Net.of(trained)])] == ["warning"]
    assert start_notes([Net.of(lambda: nn.Linear(8, 8))]) == []
