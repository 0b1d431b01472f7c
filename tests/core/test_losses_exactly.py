"""Losses against torch's own, with weights and smoothed labels; starts that a seed does not change;
and where logits are in what a module returns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedblocks.core import mode
from fedblocks.core.checks import Checked
from fedblocks.core.errors import NetError
from fedblocks.core.losses import (
    IGNORE,
    binary_cross_entropy,
    cross_entropy,
    huber,
    summed_losses,
)
from fedblocks.core.order_of_use import _may_differ
from fedblocks.core.outside_modules import (
    LogitsError,
    check_can_be_reset,
    say_where,
    take_logits,
)
from fedblocks.core.task import Task
from fedblocks.engines.round import Experiment
from fedblocks.methods.fedavg import FedAvg
from fedblocks.testing.federations import small_federation, small_net

LOGITS = torch.tensor([[0.5, -1.0, 2.0], [-0.25, 0.75, 1.5]], dtype=torch.float64)
THERE = torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]], dtype=torch.float64)
LABELS = torch.tensor([2, 0])


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weights", [(), (1.0, 2.0, 0.5)])
def test_cross_entropies_are_those_of_torch(weights: tuple[float, ...], smoothing: float) -> None:
    """Of labels that may be there, smoothed: 1 becomes 0.9 and 0 becomes 0.1."""
    own = torch.tensor(weights, dtype=torch.float64) if weights else None
    actual = binary_cross_entropy(LOGITS, THERE, weights, smoothing)
    wanted = torch.where(THERE > 0, 1 - smoothing / 2, smoothing / 2 + 0 * THERE)
    how: Any = {"pos_weight": own, "reduction": "none"}
    torch.testing.assert_close(actual, F.binary_cross_entropy_with_logits(LOGITS, wanted, **how))
    how = {"weight": own, "reduction": "none", "label_smoothing": smoothing}
    torch.testing.assert_close(
        cross_entropy(LOGITS, LABELS, weights, smoothing), F.cross_entropy(LOGITS, LABELS, **how)
    )


@pytest.mark.parametrize("mapped", [False, True])
def test_losses_of_sequences_are_sums_over_the_labels_that_are_scored(mapped: bool) -> None:
    logits = torch.stack([LOGITS, -LOGITS])  # [2 examples, 2 steps, 3 classes]
    y = torch.tensor([[2, IGNORE], [0, 1]])
    plain = F.cross_entropy(
        logits.flatten(0, 1), y.flatten(), reduction="none", ignore_index=IGNORE
    )
    with mode.mode(training=True, mapped=mapped, key=torch.tensor(0)):
        losses, counts = summed_losses(logits, y)
        alone, scored = summed_losses(logits[:, 0], torch.tensor([2, IGNORE]))
    torch.testing.assert_close(losses, torch.stack([plain[0], plain[2] + plain[3]]))
    assert counts.tolist() == [1.0, 2.0] and scored.tolist() == [1.0, 0.0]
    torch.testing.assert_close(alone, torch.stack([plain[0], torch.zeros_like(plain[0])]))


def test_a_huber_loss_turns_at_one() -> None:
    errors = torch.tensor([0.0, 0.5, -0.5, 1.0, -1.0, 3.0])
    assert huber(errors, torch.zeros(6)).tolist() == [0.0, 0.125, 0.125, 0.5, 0.5, 2.5]


class Partly(nn.Module):
    """Draws the first of its numbers anew, or all of them."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.own, self.count = nn.Parameter(torch.zeros(3)), count

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.own[: self.count].normal_()


@pytest.mark.parametrize(("count", "refused"), [(3, False), (1, True), (0, True)])
def test_a_module_that_leaves_some_numbers_as_they_are_cannot_be_drawn_anew(
    count: int, refused: bool
) -> None:
    module = nn.Sequential(nn.Linear(2, 2), Partly(count))
    before = module[1].own.clone()
    if refused:
        with pytest.raises(NetError, match=r'the parameter "1\.own" belongs to no layer'):
            check_can_be_reset(module)
    else:
        check_can_be_reset(module)
    assert torch.equal(module[1].own, before)


X, Y = torch.zeros(2, 3), torch.zeros(2, 5)


@pytest.mark.parametrize(
    ("result", "output", "expected"),
    [
        (X, None, X),
        ((X, Y), 1, Y),
        (X, 1, X),  # a tuple in training only
        ({"a": X, "b": Y}, "b", Y),
        (SimpleNamespace(logits=Y), "logits", Y),
        ((X, Y), lambda both: both[0], X),
    ],
)
def test_logits_are_taken_from_where_they_are_said_to_be(
    result: Any, output: Any, expected: Tensor
) -> None:
    assert take_logits(result, output) is expected


@pytest.mark.parametrize(
    ("result", "output", "said"),
    [
        ({"a": X, "b": 3}, None, "a dictionary with the keys 'a', 'b', not a tensor of logits"),
        ((X, Y), None, "a tuple of 2, not"),
        ([X], 4, "a list of 1, not a tensor of logits; output=4 does not name a tensor in it"),
        (SimpleNamespace(a=X), "b", "a SimpleNamespace, not"),
        (3, None, "an int, not"),
    ],
)
def test_what_is_returned_in_their_place_is_told(result: Any, output: Any, said: str) -> None:
    with pytest.raises(LogitsError) as error:
        take_logits(result, output)
    assert said in error.value.message


def test_the_entry_called_logits_is_proposed_or_one_of_as_many_outputs() -> None:
    place = lambda entries, outputs=None: say_where(entries, outputs).split("output=")[1][:8]
    assert place({"a": X, "logits": Y}, 3).startswith("'logits'")
    assert place({"a": X, "b": Y}, 5).startswith("'b'")
    assert place({"a": X, "b": Y}, 7).startswith("'a'")
    assert place({0: 3, 1: torch.zeros(()), 2: Y}, 5).startswith("2")
    assert place({}).startswith("'logits'")


def test_a_record_lets_other_bases_know_of_its_kinds() -> None:
    heard: list[str] = []

    class Listens:
        def __init_subclass__(cls, **others: Any) -> None:
            heard.append(f"{cls.__name__} {others}")

    @dataclass(frozen=True)
    class Both(Checked, Listens, word=3):  # type: ignore[call-arg]
        rate: float = 0.5

    assert heard == ["Both {'word': 3}"] and math.isclose(Both().rate, 0.5)


def test_layers_may_be_used_in_another_order_in_modules_of_ones_own_or_twice() -> None:
    layer = nn.Linear(2, 2)
    assert not _may_differ(nn.Sequential(layer, nn.ReLU()))
    assert _may_differ(nn.Sequential(layer, nn.ReLU(), layer))
    assert _may_differ(nn.Sequential(Partly(1)))


def test_a_function_of_a_method_knows_the_task_of_its_data() -> None:
    """So that what it computes by the net is for that task, in evaluation as in training."""
    seen: list[Any] = []

    class Asks(FedAvg):
        def prepare(self, blocks: Any, client: Any) -> Any:
            seen.append((mode.current().task, mode.current().training))
            return blocks

    task = Task(label_smoothing=0.25)
    data = replace(small_federation(), task=task)
    experiment = Experiment.of(Asks(small_net()), data)
    local = experiment.training_job("all", [0], experiment.start()).one(0)
    local.call(experiment.methods["all"].prepare, {})
    assert seen == [(task, False)]
