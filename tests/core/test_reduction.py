"""The two ways to reduce slots, tensor by tensor and all side by side (as on a GPU), agree."""

from __future__ import annotations

import pytest
import torch

from fedblocks.core.reduction import _reduce_at_once, reduce_slots
from fedblocks.core.rules import Average
from fedblocks.core.uploads import Upload

NUMBERS = torch.Generator().manual_seed(0)


def _upload(slots: int, clients: int = 5) -> tuple[dict[str, torch.Tensor], Upload]:
    shapes: dict[str, tuple[int, ...]] = {
        "weight": (3, 2),
        "bias": (3,),
        "scale": (),
        "left.running_mean": (4,),
    }
    old = {name: torch.randn(slots, *shape, generator=NUMBERS) for name, shape in shapes.items()}
    copies = {
        n: torch.randn(clients, *s, generator=NUMBERS)
        for n, s in shapes.items()
        if not n.startswith("left")
    }
    weights = torch.rand(clients, slots, generator=NUMBERS, dtype=torch.double)
    weights[:, -1] = 0  # nobody writes the last slot
    return old, Upload(
        "model", torch.arange(clients), copies, weights, per_slot=False, rule=Average()
    )


@pytest.mark.parametrize("slots", [1, 2, 7])
def test_all_tensors_side_by_side_are_reduced_as_one_by_one(slots):
    old, upload = _upload(slots)
    expected, written = reduce_slots(old, upload)
    total = upload.weights.sum(0)
    share = upload.weights / torch.where(total > 0, total, 1)
    actual = _reduce_at_once(old, upload.copies, share, written)
    assert list(actual) == list(old) and written.tolist() == [True] * (slots - 1) + [False]
    for name, value in expected.items():
        assert actual[name].shape == old[name].shape
        assert torch.allclose(actual[name], value, atol=1e-7)
        assert torch.equal(actual[name][-1], old[name][-1])  # what nobody wrote is as it was
