"""What engines refuse before the first round, and when programs are alike."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from fedblocks.core.errors import DataError
from fedblocks.data.federation import Federation, Rows
from fedblocks.engines.replay.recording import Program, Recorder
from fedblocks.engines.round import Experiment
from fedblocks.methods.fedavg import FedAvg
from fedblocks.methods.fedfomo import FedFomo
from fedblocks.testing.federations import small_federation, small_net


def lacking(*clients: int) -> Federation:
    """Six clients, of which some have no validation rows."""
    data = small_federation()
    rows = [[] if c in clients else list(data.validation[c]) for c in range(data.clients)]
    return replace(data, validation=Rows.of([np.array(own, dtype=np.int64) for own in rows]))


@pytest.mark.parametrize(
    ("clients", "said"),
    [
        ((2,), '"client-2" has none'),
        ((1, 4), '"client-1" and 1 other client have none'),
        ((0, 3, 5), '"client-0" and 2 other clients have none'),
    ],
)
def test_clients_without_a_part_that_a_method_needs_are_counted(
    clients: tuple[int, ...], said: str
) -> None:
    method = FedFomo(small_net())
    Experiment.of(method, lacking())
    with pytest.raises(DataError, match=f"FedFomo needs a validation part, and {said}"):
        Experiment.of(method, lacking(*clients))


def test_only_clients_of_a_group_need_what_its_method_needs() -> None:
    groups = ["picky", "plain", "picky", "plain", "picky", "plain"]
    methods = {"picky": FedFomo(small_net()), "plain": FedAvg(small_net())}
    Experiment(methods, lacking(1, 3), 0, groups)
    with pytest.raises(DataError, match='"client-2" has none'):
        Experiment(methods, lacking(1, 2), 0, groups)


def adding(x: Tensor, constant: Tensor) -> Program:
    with Recorder([x]) as recorder:
        x.add_(constant)
    return recorder.program(steady=1)


def test_programs_are_the_same_if_their_constants_are() -> None:
    x = torch.zeros(2)
    one = adding(x, torch.tensor([1.0, 2.0]))
    assert one.same_as(adding(x, torch.tensor([1.0, 2.0])))
    assert not one.same_as(adding(x, torch.tensor([1.0, 3.0])))
    assert not one.same_as(adding(x, torch.tensor([1.0])))
    assert not one.same_as(adding(x, torch.tensor(1.0)))


def test_a_constant_that_was_written_to_in_between_is_another_one() -> None:
    x, constant = torch.zeros(2), torch.ones(2)
    one = adding(x, constant)
    assert one.same_as(adding(x, constant))
    constant.add_(0)
    assert not one.same_as(adding(x, constant))
