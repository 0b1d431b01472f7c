"""Arithmetic on blocks of parameters, worked out copy by copy; and means over what is real."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedblocks.core.arithmetic import distance2, each, flat, mix, pick, unflat
from fedblocks.core.losses import summed_losses
from fedblocks.core.phases import Batch
from fedblocks.core.task import CLASSIFICATION

STACK = {
    "w": torch.arange(24, dtype=torch.float64).reshape(4, 3, 2).square(),
    "b": torch.arange(4, dtype=torch.float64).reshape(4, 1) - 1.5,
}
COPIES = [{name: value[slot] for name, value in STACK.items()} for slot in range(4)]


def test_a_mixture_is_the_weighted_sum_of_the_copies() -> None:
    weights = torch.tensor([0.5, 0.0, 2.0, -1.0])
    mixed = mix(STACK, weights)
    for name in STACK:
        wanted = sum(float(w) * copy[name] for w, copy in zip(weights, COPIES))
        torch.testing.assert_close(mixed[name], wanted)


def test_each_copy_sees_the_same_input() -> None:
    x = torch.tensor([[1.0, 2.0], [0.5, -1.0]], dtype=torch.float64)
    part = lambda copy, x: x @ copy["w"].T + copy["b"]
    torch.testing.assert_close(
        each(part, STACK, x), torch.stack([part(copy, x) for copy in COPIES])
    )


def test_a_copy_is_picked_by_its_number() -> None:
    for slot, copy in enumerate(COPIES):
        picked = pick(STACK, torch.tensor(slot))
        assert all(torch.equal(picked[name], copy[name]) for name in STACK)


def test_the_distance_is_the_sum_of_all_squares() -> None:
    a, b = COPIES[0], COPIES[2]
    wanted = sum(
        (float(x) - float(y)) ** 2
        for name in STACK
        for x, y in zip(a[name].flatten(), b[name].flatten())
    )
    assert float(distance2(a, b)) == pytest.approx(wanted)


def test_a_row_of_the_flat_stack_is_a_copy() -> None:
    rows = flat(STACK)
    assert rows.shape == (4, 7)
    for row, copy in zip(rows, COPIES):
        again = unflat(row, copy)
        assert list(again) == list(copy)
        assert all(torch.equal(again[name], copy[name]) for name in copy)


def batch(mask: list[float], y: Tensor) -> Batch:
    real = torch.tensor(mask)
    rows = len(mask)
    client: Any = SimpleNamespace(task=CLASSIFICATION)
    return Batch(torch.zeros(rows, 1), y, real, torch.arange(rows), torch.tensor(0), client)


@pytest.mark.parametrize(
    ("mask", "mean"), [([1, 1, 1], 2.0), ([1, 0, 1], 2.0), ([1, 1, 0], 1.5), ([0, 0, 0], 0.0)]
)
def test_padding_has_no_part_in_a_mean(mask: list[float], mean: float) -> None:
    values = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    actual = batch(mask, torch.tensor([0, 1, 0])).mean(values)
    actual.backward()
    assert actual.item() == mean
    assert values.grad is not None
    assert values.grad.tolist() == pytest.approx([m / max(sum(mask), 1) for m in mask])


@pytest.mark.parametrize("mask", [[1, 1, 1], [1, 0, 1], [0, 0, 0]])
def test_the_loss_of_a_batch_is_that_of_its_real_examples(mask: list[float]) -> None:
    logits = torch.tensor([[1.0, -1.0], [0.5, 2.0], [0.0, 3.0]], requires_grad=True)
    y = torch.tensor([0, 1, 0])
    loss = batch(mask, y).loss(logits)
    loss.backward()
    each = -torch.log_softmax(logits.detach(), -1)[range(3), y]
    real = [float(v) for v, m in zip(each, mask) if m]
    assert loss.item() == pytest.approx(sum(real) / max(len(real), 1))
    assert logits.grad is not None and bool(torch.isfinite(logits.grad).all())


def test_tokens_that_are_not_scored_have_no_part_in_a_loss() -> None:
    logits = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([[1, -100, 3], [-100, -100, -100]])
    total, count = summed_losses(logits, y)
    logs = -torch.log_softmax(logits, -1)
    wanted = float(logs[0, 0, 1] + logs[0, 2, 3])
    assert count.tolist() == [2, 0] and total.tolist() == pytest.approx([wanted, 0.0])
    assert CLASSIFICATION.example_losses(logits, y).tolist() == pytest.approx([wanted / 2, 0.0])
    assert batch([1, 1], y).loss(logits).item() == pytest.approx(wanted / 2)
    assert batch([0, 1], y).loss(logits).item() == 0.0
