"""How rules, optimizers and decay move numbers that can be followed by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import fedblocks as fb
from fedblocks.core.aggregate import _apply_rule
from fedblocks.core.decay import DecayGroups, _is_selective, exempt_names
from fedblocks.core.optimizers import SGD, Adam, AdamW, _missing, each_client, of_some
from fedblocks.core.rules import Average, MovingAverage, ServerAdagrad, ServerAdam, ServerYogi
from fedblocks.methods.flow.instance_routes import Paced


def test_rules_move_parameters_and_average_statistics() -> None:
    old = {"w": torch.tensor([1.0]), "running_mean": torch.tensor([1.0]), "n": torch.tensor([1])}
    mean = {"w": torch.tensor([3.0]), "running_mean": torch.tensor([3.0]), "n": torch.tensor([3])}
    _, half = MovingAverage(0.25).apply({}, old, mean)
    assert [float(half[k]) for k in old] == [1.5, 3.0, 3.0]
    # change 2: first moment 0.5 x 2, second by its rule from 0.25
    seconds = {
        ServerAdam: 0.5 * 0.25 + 0.5 * 4,
        ServerAdagrad: 0.25 + 4,
        ServerYogi: 0.25 + 0.5 * 4,
    }
    for kind, second in seconds.items():
        rule = kind(lr=0.1, beta1=0.5, beta2=0.5, tau=0.5)
        memory, new = rule.apply(rule.memory(old), old, mean)
        assert float(memory["second"]["w"]) == pytest.approx(second) and set(memory["first"]) == {
            "w"
        }
        assert float(new["w"]) == pytest.approx(1 + 0.1 * 1.0 / (second**0.5 + 0.5))
        assert float(new["running_mean"]) == 3.0


@pytest.mark.parametrize(
    "kind",
    [
        SGD(momentum=0.5, nesterov=True, weight_decay=0.25),
        Adam(betas=(0.5, 0.75), weight_decay=0.25),
        AdamW(betas=(0.5, 0.75), weight_decay=0.25),
    ],
)
def test_numbers_of_each_client_move_a_stack_as_they_move_a_client(kind: Any) -> None:
    """Two clients: the first as it is, the second with halves of all numbers."""
    names = {"momentum", "weight_decay"} & vars(kind).keys()
    both = replace(kind)
    for name in names:
        object.__setattr__(both, name, torch.tensor([1.0, 0.5]).double() * getattr(kind, name))
    lr = torch.tensor([0.5, 0.25]).double()
    stack = [torch.tensor([[1.0, 2.0], [1.0, 2.0]]).double(), torch.tensor([3.0, 3.0]).double()]
    memory = both.memory(stack)
    for count in (1, 2):
        both.step(stack, [torch.ones(2, 2).double(), torch.ones(2).double()], memory, lr, count)
    for client, share in enumerate((1.0, 0.5)):
        alone = replace(kind, **{name: share * getattr(kind, name) for name in names})
        own = [torch.tensor([1.0, 2.0]).double(), torch.tensor(3.0).double()]
        kept = alone.memory(own)
        for count in (1, 2):
            alone.step(
                own, [torch.ones(2).double(), torch.ones(()).double()], kept, 0.5 * share, count
            )
        assert torch.allclose(stack[0][client], own[0]) and torch.allclose(stack[1][client], own[1])


def test_betas_of_each_client_are_its_own() -> None:
    """Two clients, whose means and squares fade at rates of their own."""
    betas = torch.tensor([0.5, 0.25]).double(), torch.tensor([0.75, 0.875]).double()
    both = Adam()
    object.__setattr__(both, "betas", betas)
    stack = [torch.tensor([[1.0, 2.0], [1.0, 2.0]]).double()]
    memory = both.memory(stack)
    slopes = torch.tensor([1.0, -3.0]).double(), torch.tensor([2.0, 0.5]).double()
    for count, slope in enumerate(slopes, 1):
        both.step(stack, [torch.stack([slope, 2 * slope])], memory, 0.5, count)
    for client, (slow, slower) in enumerate(torch.stack(betas, 1).tolist()):
        alone, own = Adam((slow, slower)), [torch.tensor([1.0, 2.0]).double()]
        kept = alone.memory(own)
        for count, slope in enumerate(slopes, 1):
            alone.step(own, [(1 + client) * slope], kept, 0.5, count)
        assert torch.allclose(stack[0][client], own[0])
        # squares, from 0: kept x s, then (1 - kept) x the next gradient's square
        first, second = (((1 + client) * slope).square() * (1 - slower) for slope in slopes)
        assert torch.allclose(memory["square"][0][client], slower * first + second)


def test_what_moments_miss_is_exact_and_rates_are_shaped_like_tensors() -> None:
    missing = _missing(torch.tensor(0.999), torch.tensor(1))
    assert missing.dtype == torch.double and _missing(0.5, 2) == 0.75  # type: ignore[union-attr]
    shaped = each_client(torch.tensor([1.0, 2.0]).double(), torch.zeros(2, 3, 4))
    assert shaped.shape == (2, 1, 1) and shaped.dtype == torch.float32  # type: ignore[union-attr]
    assert each_client(0.5, torch.zeros(2)) == 0.5


def test_decay_is_left_out_for_what_is_exempt() -> None:
    a, b = torch.tensor([4.0]), torch.tensor([4.0])
    groups = DecayGroups(SGD(momentum=0.5, weight_decay=0.5), frozenset({id(b)}))
    memory = {**groups.memory([a, b]), "count": [torch.zeros(())]}
    groups.step([a, b], [torch.zeros(1), torch.zeros(1)], memory, 1.0, 1)
    assert [float(a), float(b)] == [2.0, 4.0]
    net = fb.Net.of(lambda: nn.Sequential(nn.Linear(2, 2)))
    method = fb.FedAvg(net)
    update = method.step("model", optimizer=SGD(weight_decay=0.5, decay="weights"))
    blocks = {"model": net.init(0)}
    assert exempt_names(update, method, blocks) == {("model", "0.bias")}
    assert (
        exempt_names(method.step("model"), method, blocks)
        == set()
        == exempt_names(update, None, blocks)
    )
    inner = SimpleNamespace(base=SGD(decay="weights"))
    assert _is_selective(inner) and not _is_selective(SimpleNamespace(base=SGD()))


def test_an_optimizer_that_tells_tensors_by_their_places_is_asked_what_it_is_for_some() -> None:
    paced = Paced(SGD(), first=2, pace=0.5)
    assert of_some(paced, [1, 2, 3]) == Paced(SGD(), first=1, pace=0.5)
    assert of_some(SGD(), [1]) == SGD() and not paced.counts_steps
    assert Paced(Adam(), first=2, pace=0.5).counts_steps
    groups = DecayGroups(paced, frozenset({1}))
    assert of_some(groups, [1, 2]) == DecayGroups(Paced(SGD(), 1, 0.5), frozenset({1}))


def test_a_mean_without_memory_is_taken_as_it_is_and_a_rule_writes_what_was_written() -> None:
    old, mean = {"w": torch.tensor([[1.0], [1.0]])}, {"w": torch.tensor([[3.0], [5.0]])}
    written = torch.tensor([True, False])
    memory, new = _apply_rule(Average(), {}, old, mean, written)
    assert new is mean and memory == {}  # nothing is copied: what nobody wrote is in it already
    _, moved = _apply_rule(MovingAverage(0.5), {}, old, mean, written)
    assert moved["w"].tolist() == [[2.0], [1.0]]
