"""The steps of a phase on a client or two whose numbers can be followed by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from fedblocks.core import mode
from fedblocks.core.client import ClientStack, RowSource, Step, without
from fedblocks.core.kept_memory import memory_of, packed
from fedblocks.core.local_round import (
    PhaseRun,
    active_part,
    loss_gradients,
    optimizer_place,
    rates_of,
    run_step,
    step_by_step,
    step_key,
    train,
)
from fedblocks.core.optimizers import COUNT, MISSED, SGD, Adam
from fedblocks.core.parts import OPTIMIZER, Blocks
from fedblocks.core.phase_functions import begin_of, projection_of, rests_of
from fedblocks.core.phases import Phase, Pull, Update
from fedblocks.core.random import fold
from fedblocks.core.resting import Rest, moments_at, without_resting
from fedblocks.core.schedules import Ramp
from fedblocks.core.step_counts import turns
from fedblocks.core.task import Task

REGRESSION = Task("regression")
SOURCE = RowSource(torch.tensor([[1.0], [2.0], [3.0], [4.0]]), torch.zeros(4, 1), REGRESSION)


def tensors_of(size: Any, rows: Any, key: Any) -> dict[str, Any]:
    size, rows, key = torch.tensor(size).double(), torch.tensor(rows), torch.tensor(key)
    own = {"rows": rows, "size": size, "validation_rows": rows, "validation_size": size}
    own |= {"id": key * 0, "key": key, "steps": key * 0 + 2}
    return {**own, "tags": {}, "options": {}, "optimizers": {}}


def one(**changes: Any) -> ClientStack:
    tensors = tensors_of(3.0, [2, 0, 1, 2], 11)
    stack = ClientStack(SOURCE, tensors, 3, True, lambda function: function)
    return replace(stack, **changes)


def two(**changes: Any) -> ClientStack:
    tensors = tensors_of([3.0, 2.0], [[2, 0, 1], [3, 1, 3]], [11, 12])
    return replace(ClientStack(SOURCE, tensors, 3, True, vmap), **changes)


def loss(blocks: Blocks, batch: Any) -> Tensor:
    """w times the mean of x, so that the gradient is that mean."""
    return batch.mean(blocks["a"]["w"] * batch.x[:, 0])


def stretch_of(phase: Phase, blocks: Blocks, local: ClientStack, **changes: Any) -> PhaseRun:
    rates = rates_of(phase, local.round)
    memories = [{} for _ in phase.updates]
    exempt: list[Any] = [set() for _ in phase.updates]
    lacked: list[Any] = [set() for _ in phase.updates]
    whole = PhaseRun(phase, 5, blocks, blocks, local, memories, rates, exempt, lacked)
    return replace(whole, **changes)


def test_rates_are_learning_rates_then_pulls_then_norms() -> None:
    pulled = Update(("a",), loss, Ramp(1.0, 3.0, 4), pull=Pull("a", "b", 0.5))
    clipped = Update(("a",), loss, 0.25, clip_norm=2.0)
    assert rates_of(Phase((pulled, clipped)), 2) == [2.0, 0.25, 0.5, 0.0, math.inf, 2.0]
    assert optimizer_place(3, 1) == "3/1"


def test_those_who_still_have_batches_are_views_of_the_first() -> None:
    phase = Phase((Update(("a",), loss, 0.5),))
    blocks = {"a": {"w": torch.tensor([1.0, 2.0])}}
    rates = [torch.tensor([0.25, 0.5]), torch.tensor(0.75), 2.0]
    memories = [{"velocity": [torch.tensor([5.0, 6.0])]}]
    start = {"a": {"w": torch.tensor([7.0, 8.0])}}
    whole = stretch_of(phase, blocks, two(), rates=rates, memories=memories, start=start)
    assert active_part(whole, None) is whole
    part = active_part(whole, 1)
    assert part.blocks["a"]["w"].tolist() == [1.0] and part.start["a"]["w"].tolist() == [7.0]
    assert part.memories[0]["velocity"][0].tolist() == [5.0]
    assert [torch.as_tensor(rate).tolist() for rate in part.rates] == [[0.25], 0.75, 2.0]
    assert part.local.tensors["size"].tolist() == [3.0] and part.number == 5
    part.blocks["a"]["w"].fill_(9.0)
    assert blocks["a"]["w"].tolist() == [9.0, 2.0]  # a view


def test_steps_count_from_one_and_each_has_its_key() -> None:
    seen: list[tuple[int, list[float], Tensor, bool]] = []

    def noting(blocks: Blocks, batch: Any) -> Tensor:
        now = mode.current()
        seen.append((len(batch.x), batch.mask.tolist(), batch.key, now.mask is None))
        assert now.training and not now.mapped and now.task is REGRESSION
        assert now.key is batch.key and batch.client.round == 3
        return loss(blocks, batch)

    phase = Phase((Update(("a",), noting, 0.5),))
    blocks = {"a": {"w": torch.tensor(1.0)}}
    whole = stretch_of(phase, blocks, one())
    step_by_step(whole, [])
    assert not seen
    order = [Step(torch.tensor([0, 1]), True), Step(torch.tensor([2, -1]), False)]
    step_by_step(whole, order)
    assert [row[:2] for row in seen] == [(2, [1.0, 1.0]), (2, [1.0, 0.0])]
    assert [row[3] for row in seen] == [True, False]
    own = fold(torch.tensor(11), 5)
    assert [int(row[2]) for row in seen] == [int(fold(own, n)) for n in (1, 2)]
    assert int(step_key(whole, 7)) == int(fold(own, 7))
    # rows 3 and 1: the mean is 2; then row 2 alone
    assert float(blocks["a"]["w"]) == 1.0 - 0.5 * 2 - 0.5 * 2


def test_clients_of_a_stack_stop_when_they_have_no_more_batches() -> None:
    phase = Phase((Update(("a",), loss, 0.5),))
    blocks = {"a": {"w": torch.tensor([1.0, 1.0])}}
    order = [
        Step(torch.tensor([[0, 1], [0, 1]]), True, 2),
        Step(torch.tensor([[2, -1]]), False, 1),
    ]
    step_by_step(stretch_of(phase, blocks, two()), order)
    assert blocks["a"]["w"].tolist() == [1 - 1.0 - 1.0, 1 - 0.5 * 3]  # means 2, 2 and (4 + 2) / 2


class Counting:
    """An optimizer that notes the numbers of its steps."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, list[float], float]] = []

    def memory(self, params: list[Tensor]) -> dict[str, list[Tensor]]:
        return {}

    def step(self, params: Any, grads: Any, memory: Any, lr: Any, count: Any) -> None:
        self.seen.append((int(count), [float(g) for g in grads], lr))


def test_repeated_updates_go_on_counting_and_pulls_come_before_the_clip() -> None:
    first, second = Counting(), Counting()
    pull = Pull("a", "b", 2.0)
    updates = (
        Update(("a",), None, 0.5, first, pull=pull, repeat=3, clip_norm=1.0),
        Update(("a",), loss, 0.25, second, pull=replace(pull, live=True)),
    )
    now = {"a": {"w": torch.tensor(4.0)}, "b": {"w": torch.tensor(1.0)}}
    began = {"a": {"w": torch.tensor(4.0)}, "b": {"w": torch.tensor(3.0)}}
    whole = stretch_of(Phase(updates), now, one(), start=began)
    run_step(whole, Step(torch.tensor([0]), True), 2, torch.tensor(1))
    # 2 (4 - 3), cut to 1; in the second step of the phase, turns 4 to 6
    assert [(count, lr) for count, _, lr in first.seen] == [(4, 0.5), (5, 0.5), (6, 0.5)]
    assert all(grads == pytest.approx([1.0]) for _, grads, _ in first.seen)
    assert second.seen == [(2, [3.0 + 2.0 * (4.0 - 1.0)], 0.25)]  # row 2 is 3; live: to 1


def test_a_projection_puts_the_trained_blocks_in_their_place() -> None:
    def project(blocks: Blocks) -> Blocks:
        assert blocks.keys() == {"a"}
        return {"a": {"w": blocks["a"]["w"].clamp(min=0.0)}, "b": {"w": torch.tensor(9.0)}}

    update = Update(("a",), loss, 1.0, project=project)
    blocks = {"a": {"w": torch.tensor(1.0)}, "b": {"w": torch.tensor(2.0)}}
    run_step(stretch_of(Phase((update,)), blocks, one()), Step(torch.tensor([0]), True), 1,
             torch.tensor(1))  # fmt: skip
    assert [float(blocks[name]["w"]) for name in "ab"] == [0.0, 2.0]


def test_gradients_are_of_what_an_update_names_and_none_of_what_its_loss_does_not_see() -> None:
    blocks = {"a": {"w": torch.tensor(1.0), "idle": torch.zeros(2)}, "b": {"w": torch.tensor(2.0)}}
    own = lambda blocks, batch: loss(blocks, batch) * blocks["b"]["w"]
    whole = stretch_of(Phase((Update(("a",), own, 1.0),)), blocks, one())
    batch = {"x": SOURCE.x[:2], "y": SOURCE.y[:2], "mask": torch.ones(2), "index": torch.arange(2)}
    batch |= {"key": torch.tensor(1)}
    grad, idle = loss_gradients(0, whole, batch, Step(torch.arange(2), True))
    assert float(grad) == 2.0 * 1.5 and idle is None  # type: ignore[arg-type]
    assert not blocks["a"]["w"].requires_grad


def test_a_phase_begins_on_copies_of_the_blocks_that_it_trains() -> None:
    def begin(blocks: Blocks) -> Blocks:
        return {"a": {"w": blocks["b"]["w"] * 10}, "b": {"w": torch.tensor(7.0)}}

    phases = [Phase((Update(("a",), loss, 0.5, SGD(momentum=0.5)),), begin=begin)]
    start = {"a": {"w": torch.tensor(1.0)}, "b": {"w": torch.tensor(2.0)}}
    order = [[Step(torch.tensor([0]), True)] * 2]
    local = one(keep_optimizer=True)
    after = train(phases, start, local, order, step_by_step)
    assert float(start["a"]["w"]) == 1.0 and after["b"] is start["b"]
    assert float(after["a"]["w"]) == 20 - 0.5 * 3 - 0.5 * (0.5 * 3 + 3)
    kept = after[f"{OPTIMIZER}0/0"]
    assert {name: float(value) for name, value in kept.items()} == {"velocity/0": 4.5, "count/0": 2}
    again = train(phases, after, local, order, step_by_step)
    assert float(again[f"{OPTIMIZER}0/0"]["count/0"]) == 4 and float(kept["count/0"]) == 2
    other = train(phases, start, replace(local, rates={(0, 0): 0.0}), order, step_by_step)
    assert float(other["a"]["w"]) == 20.0  # a client's own rate


def test_moments_are_fresh_or_kept_and_counted_by_block_where_blocks_may_rest() -> None:
    trained = [("a", "w", torch.zeros(2)), ("b", "v", torch.zeros(3)), ("b", "u", torch.zeros(3))]
    update = Update(("a", "b"), loss, 0.5, SGD(momentum=0.5))
    kept = {"velocity/0": torch.ones(2)}
    assert memory_of(update, trained, 0, kept, one()).keys() == {"velocity"}
    (count,) = memory_of(update, trained, 0, None, one(keep_optimizer=True))[COUNT]
    assert count.dtype == torch.double and float(count) == 0
    resting = replace(update, rests=lambda blocks, client: {})
    local = one(keep_optimizer=True)
    local = replace(local, tensors={**local.tensors, "resting": {"0": {"b": torch.ones(3).bool()}}})
    memory = memory_of(replace(resting, optimizer=Adam()), trained, 0, None, local)
    counts = memory[COUNT]
    assert [(c.tolist(), c.dtype) for c in counts] == [
        (0.0, torch.double),
        ([0.0] * 3, torch.double),
    ]
    # of the steps that a tensor missed, one for each tensor, and each slot, beside its count
    assert [missed.tolist() for missed in memory[MISSED]] == [[0.0], [[0.0, 0.0]] * 3]
    assert MISSED not in memory_of(resting, trained, 0, None, local)
    assert packed({"m": [torch.ones(1), torch.zeros(1)]}).keys() == {"m/0", "m/1"}


def test_what_rests_is_put_back_and_in_no_norm() -> None:
    a, b = torch.tensor([1.0, 2.0]), torch.tensor([[3.0], [4.0]])
    trained = [("a", "w", a), ("b", "w", b)]
    flags = {"b": torch.tensor([True, False])}
    grads = without_resting(trained, [torch.ones(2), torch.ones(2, 1)], flags)
    assert [g.tolist() for g in grads if g is not None] == [[1.0, 1.0], [[0.0], [1.0]]]
    assert without_resting(trained, [None, None], flags) == [None, None]
    moment, counts = [torch.zeros(2), torch.zeros(2, 1)], [torch.zeros(()), torch.zeros(2)]
    missed = [torch.zeros(1), torch.zeros(2, 1)]
    memory = {"m": moment, COUNT: counts, MISSED: missed, "odd": [torch.zeros(1)]}
    update = Update(("a", "b"), loss, 0.5)
    rest = Rest(update, trained, memory, flags)
    for value in (a, b, *moment, *counts, *missed, memory["odd"][0]):
        value += 10
    rest.put_back()
    assert a.tolist() == [11.0, 12.0] and b.tolist() == [[3.0], [14.0]]
    assert moment[0].tolist() == [10.0, 10.0] and moment[1].tolist() == [[0.0], [10.0]]
    assert float(counts[0]) == 10.0 and counts[1].tolist() == [0.0, 10.0]
    assert missed[0].tolist() == [10.0] and missed[1].tolist() == [[0.0], [10.0]]
    assert memory["odd"][0].tolist() == [10.0]
    assert Rest(update, trained, memory, {}).held == []


def test_tensors_step_together_or_block_by_block_where_some_may_rest() -> None:
    trained = [("a", "w", torch.zeros(1)), ("b", "v", torch.zeros(1)), ("a", "u", torch.zeros(1))]
    grads = [torch.ones(1), None, torch.ones(1)]
    plain = Update(("b", "a"), loss, 0.5)
    assert list(turns(plain, trained, grads, {}, set(), 7)) == [([0, 2], 7)]
    resting = replace(plain, rests=lambda blocks, client: {})
    assert list(turns(resting, trained, grads, {}, set(), 7)) == [([0, 2], 7)]
    everything = [torch.ones(1)] * 3
    assert list(turns(resting, trained, everything, {}, set(), 7)) == [([1], 7), ([0, 2], 7)]
    counts: Any = {COUNT: [torch.tensor(4.0), torch.tensor(8.0)]}
    own = list(turns(resting, trained, everything, counts, set(), 7))
    assert [(places, float(count)) for places, count in own] == [([1], 5.0), ([0, 2], 9.0)]
    memory: Any = {"m": [1, 2, 3], COUNT: [4], MISSED: [6], "once": [5]}
    assert moments_at(memory, [0, 1, 2], 3) == {"m": [1, 2, 3], "once": [5]}
    assert moments_at(memory, [2, 0], 3) == {"m": [3, 1], "once": [5]}


@pytest.mark.parametrize("stacked", [False, True])
def test_functions_of_a_phase_run_as_an_evaluation_and_see_frozen_blocks(stacked: bool) -> None:
    seen: list[str] = []

    def look(name: str, blocks: Blocks, *client: Any) -> Any:
        now = mode.current()
        assert (now.training, now.mapped, now.task) == (False, stacked, REGRESSION)
        assert ("base" in blocks) is (name != "project")
        assert [c.round for c in client] == ([3] if name == "rests" else [])
        seen.append(name)
        return blocks

    frozen = {"base": {"w": torch.tensor(1.0)}}
    local = two(frozen=frozen) if stacked else one(frozen=frozen)
    functions = {
        name: (lambda *args, name=name: look(name, *args)) for name in ("begin", "project", "rests")
    }
    update = Update(("a",), loss, 0.5, project=functions["project"], rests=functions["rests"])
    phase = Phase((update,), begin=functions["begin"])
    blocks = {"a": {"w": torch.zeros(2)}}
    with mode.mode(training=True, mapped=not stacked):
        local.each(begin_of(phase, 0, local))(local.tensors, blocks)
        local.each(projection_of(functions["project"], 0, 0, local))(local.tensors, blocks)
        local.each(rests_of(functions["rests"], 0, 0, local))(local.tensors, blocks)
    assert seen == ["begin", "project", "rests"]
    assert without(frozen, {"a": 1, "base": 2}) == {"a": 1} and without({}, 5) == 5
