"""Why runs cannot be lanes of one, in words; and the numbers in which lanes differ."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pytest
import torch
from torch import nn

from fedblocks.core.net import Net
from fedblocks.core.optimizers import SGD, Adam
from fedblocks.core.schedules import Exponential
from fedblocks.engines.lanes.likeness import _frozen_differ, why_not
from fedblocks.engines.lanes.numbers import (
    differing_numbers,
    differing_options,
    is_number,
    kept_beside,
    read_once,
)
from fedblocks.engines.round import Experiment
from fedblocks.methods.fedavg import FedAvg
from fedblocks.methods.fedper import FedPer
from fedblocks.methods.fedprox import FedProx
from fedblocks.testing.federations import small_federation, small_net

DATA = small_federation()
NET = small_net()
WIDE = Net.of(lambda: nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4)), dtype=NET.dtype)


def lane(method: Any = None, data: Any = DATA, group: str = "all") -> Experiment:
    return Experiment({group: method or FedAvg(NET)}, data, 0)


UNLIKE = {
    "they have other groups of clients": lane(group="others"),
    "they have other methods": lane(FedPer(NET)),
    "batch_size differs, and is not a number in both": lane(FedAvg(NET, batch_size=5)),
    "clip_norm differs, and is not a number in both": lane(FedAvg(NET, clip_norm=1.0)),
    "their optimizers differ in more than numbers": lane(FedAvg(NET, optimizer=Adam())),
    "their nets have other shapes": lane(FedAvg(WIDE)),
    "their texts have other vocabularies": lane(data=replace(DATA, about={"vocabulary": ["a"]})),
}


@pytest.mark.parametrize("reason", UNLIKE)
def test_what_keeps_runs_apart_is_said(reason: str) -> None:
    assert why_not([lane(), UNLIKE[reason]]) == reason
    assert why_not([lane(), lane(), UNLIKE[reason]]) == reason
    assert why_not([UNLIKE[reason]]) is None  # one alone can always be


def test_runs_that_differ_in_numbers_and_seeds_are_alike() -> None:
    others = [FedAvg(NET, lr=0.3), FedAvg(NET, lr=Exponential(0.1, 0.01, 5))]
    assert why_not([lane(), *map(lane, others)]) is None
    slow, fast = (FedAvg(NET, optimizer=SGD(momentum=m)) for m in (0.5, 0.9))
    assert why_not([lane(slow), lane(fast)]) is None
    assert why_not([lane(), lane(fast)]) == "their optimizers differ in more than numbers"


def test_data_of_other_shapes_or_tags_are_told() -> None:
    wider = replace(DATA, x=torch.cat([DATA.x, DATA.x], 1))
    tags = {**DATA.tags, "more": torch.zeros(DATA.clients).numpy()}
    for data in (wider, replace(DATA, tags=tags)):
        assert why_not([lane(), lane(data=data)]) == "their data have other shapes or tags"


def test_blocks_that_are_frozen_must_be_the_same() -> None:
    assert _frozen_differ({"a": "1", "b": "2"}, {"a": "1", "b": "2"}) is None
    assert _frozen_differ({"a": "1", "b": "2"}, {"a": "3", "b": "4"}) == (
        'their frozen blocks differ: "a", "b"'
    )


def test_numbers_in_which_lanes_differ_are_one_for_each() -> None:
    methods = [FedProx(NET, lr=rate, strength=0.5) for rate in (0.1, 0.2)]
    assert differing_options([(one, 0) for one in methods]) == {"lr": [0.1, 0.2]}
    falling = FedProx(NET, lr=Exponential(1.0, 0.25, 2))
    assert differing_options([(falling, 0), (falling, 0)]) == {}
    assert differing_options([(falling, 0), (falling, 1)]) == {"lr": [1.0, 0.5]}
    heavy = [FedAvg(NET, optimizer=SGD(momentum=m)) for m in (0.5, 0.9)]
    assert differing_options([(one, 0) for one in heavy]) == {"optimizer.momentum": [0.5, 0.9]}
    assert differing_numbers([Adam(betas=(0.9, b)) for b in (0.99, 0.9)]) == {
        "betas.1": [0.99, 0.9]
    }
    assert differing_numbers([1.0, 2.0]) == {}
    assert [is_number(one) for one in (1, 0.5, falling.lr, True, None)] == [True] * 3 + [False] * 2


@dataclass(frozen=True)
class Remembering(FedAvg):
    """Makes something of an option once."""

    pace: float = 1.0

    @cached_property
    def double(self) -> float:
        return 2 * self.pace


def test_options_that_something_is_made_from_once_are_not_free() -> None:
    method = Remembering(NET)
    assert read_once(method)["pace"] == ["double"] and "lr" not in read_once(method)
    assert kept_beside(method) == []
    object.__setattr__(method, "beside", 1)
    assert kept_beside(method) == ["beside"]
    reason = why_not([lane(Remembering(NET)), lane(Remembering(NET, pace=2.0))])
    assert reason == "pace differs, and double of Remembering is made from it once"
    beside = why_not([lane(method), lane(Remembering(NET, lr=0.3))])
    assert beside == "lr differs, and Remembering keeps beside beside its options"
