"""Engines keep the precision of what they count, and share memory where they mean to."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedblocks.core.net import Net
from fedblocks.core.task import Task
from fedblocks.engines.local_work import Evaluated, _second_download
from fedblocks.engines.net_check.trial import _precise
from fedblocks.engines.processes.shared_memory import put
from fedblocks.engines.replay.recording import Recorder
from fedblocks.engines.replay.rewriting import _bits, _copies
from fedblocks.engines.round import Evaluation
from fedblocks.engines.scoring import score_outputs


def test_metrics_of_outputs_are_computed_in_double_precision() -> None:
    """Errors of 2^24 + 2 and of 1: their sum needs one digit more than single precision has."""
    outputs = torch.tensor([[2.0**24 + 2], [1.0]])
    task = Task("regression", metrics=("mae",))
    *_, mae = score_outputs(task, outputs, torch.zeros(2, 1))
    assert mae == (2**24 + 3) / 2


def test_targets_are_compared_in_double_precision() -> None:
    """2^24 + (0, 2, 6): their mean, 8/3 above 2^24, is none of single precision. Errors of 2:
    12 of (64 + 4 + 100) / 9 is not explained.
    """
    y = 2.0**24 + torch.tensor([[0.0], [2.0], [6.0]])
    *_, r2 = score_outputs(Task("regression", metrics=("r2",)), y + 2, y)
    assert r2 == pytest.approx(1 - 12 * 9 / 168, abs=1e-12)


@pytest.mark.parametrize(("metric", "worst"), [("mae", math.inf), ("r2", -math.inf)])
def test_outputs_of_which_one_is_no_number_are_as_bad_as_can_be(metric: str, worst: float) -> None:
    outputs = torch.tensor([[1.0], [math.nan], [2.0]])
    y = torch.tensor([[1.0], [1.0], [2.0]])
    task = Task("regression", metrics=(metric,))
    assert score_outputs(task, outputs, y)[-1] == worst
    assert score_outputs(task, outputs[::2], y[::2])[-1] == float(metric == "r2")


@pytest.mark.parametrize("x", [torch.zeros(3, 2), torch.zeros(3, 2).double()])
def test_a_net_is_checked_in_double_precision(x: Tensor) -> None:
    net, inputs = _precise(Net.of(lambda: nn.Linear(2, 2)), x)
    assert net.dtype == torch.float64 == inputs.dtype


def test_a_net_is_checked_on_the_tokens_that_it_reads() -> None:
    tokens = torch.tensor([[0, 1], [2, 1]])
    make = lambda: nn.Sequential(nn.Embedding(3, 2), nn.Flatten(), nn.Linear(4, 2))
    net, inputs = _precise(Net.of(make), tokens)
    assert net.dtype == torch.float64 and inputs is tokens


class Single(nn.Linear):
    """Insists on single precision."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.float())


def test_a_net_that_insists_on_its_precision_is_checked_in_that() -> None:
    x = torch.zeros(3, 2)
    net, inputs = _precise(Net.of(lambda: Single(2, 2)), x)
    assert net.dtype == torch.float32 and inputs is x


def test_what_a_client_asks_for_costs_so_many_slots() -> None:
    """Clients that ask for two and for one of three slots of 10 bytes."""
    wanted = {"pool": torch.tensor([[0.5, 0.0, 0.5], [0.0, 0.0, 1.0]])}
    stack: Any = SimpleNamespace(call=lambda hook, blocks: hook(blocks))
    job: Any = SimpleNamespace(
        sent=SimpleNamespace(on_request=["pool"]),
        method=SimpleNamespace(wants=lambda blocks: wanted),
        requested=lambda wishes, local: {"pool": {"w": torch.ones(1)}},
        bytes_per_slot={"pool": 10},
    )
    blocks, wishes, down = _second_download(job, stack, {"own": {}})
    assert [*blocks] == ["own", "pool"] and wishes is wanted
    assert down["pool"].tolist() == [20, 10]


def test_portraits_of_one_and_of_several_numbers_are_lists_by_client() -> None:
    seen = Evaluation()
    several, one = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([5.0, 6.0])
    seen.add(Evaluated({}, {"gates": several, "depth": one}), [7, 3])
    assert seen.portraits == {
        "gates": {7: [1.0, 2.0], 3: [3.0, 4.0]},
        "depth": {7: [5.0], 3: [6.0]},
    }


def test_a_clients_row_in_shared_memory_needs_no_gradient() -> None:
    tree = {"own": {"w": torch.zeros(2, 3)}}
    put(tree, 1, {"own": {"w": torch.ones(1, 3).requires_grad_()}})
    assert tree["own"]["w"].tolist() == [[0.0] * 3, [1.0] * 3]
    assert not tree["own"]["w"].requires_grad


def test_a_trial_of_a_program_writes_to_copies_of_what_it_reads() -> None:
    read, unread = torch.zeros(2), torch.zeros(2)
    with Recorder([read, unread]) as recorder:
        read.add_(1)
    own, same = _copies(recorder.program(steady=2), [read, unread])
    assert own.data_ptr() != read.data_ptr() and torch.equal(own, read)
    assert same is unread


def test_the_bits_of_a_tensor_are_those_of_its_numbers_in_any_order() -> None:
    plain = torch.tensor([[0.0, 1.0], [2.0, 3.0]])
    by_columns = plain.t().contiguous().t()
    assert torch.equal(_bits(by_columns), _bits(plain)) and len(_bits(plain)) == 16
    assert not torch.equal(_bits(torch.tensor([0.0])), _bits(torch.tensor([-0.0])))
