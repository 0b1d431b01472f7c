"""Batches in parts, one for each gradient of Per-FedAvg."""

from __future__ import annotations

from typing import Any

import torch

from fedblocks.core.phases import Batch
from fedblocks.core.random import fold
from fedblocks.methods.per_fedavg import divide


def test_each_part_has_examples_by_turns_and_noise_of_its_own() -> None:
    """Five examples, the last one padding, in two: 0, 2 and the padding, then 1, 3 and nothing."""
    client: Any = None
    rows = torch.arange(5)
    mask = torch.tensor([1, 1, 1, 1, 0]).double()
    batch = Batch(10 * rows, 20 * rows, mask, 30 * rows, torch.tensor(7), client)
    first, second = divide(batch, 2)
    assert first.index.tolist() == [0, 60, 120] and first.mask.tolist() == [1, 1, 0]
    assert second.index[:2].tolist() == [30, 90] and second.mask.tolist() == [1, 1, 0]
    for number, part in enumerate((first, second)):
        assert (part.x * 3).equal(part.index) and (part.y * 3).equal(2 * part.index)
        assert part.key.equal(fold(batch.key, number))
    assert not first.key.equal(second.key)  # dropout would be the same in both
