"""The two ways to reduce slots, tensor by tensor and all side by side (as on a GPU), agree."""

from __future__ import annotations

import pytest
import torch

from fedblocks.core.reduction import _reduce_at_once, reduce_slots, sum_part
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


@pytest.mark.parametrize("per_slot", [False, True])
@pytest.mark.parametrize("lanes", [(3,), (2, 3), (1, 4, 2)])
def test_every_lane_is_reduced_as_if_it_were_alone(lanes: tuple[int, ...], per_slot: bool) -> None:
    """Weights are far below 1, and one slot of each lane is written by nobody."""
    slots, clients = 2, sum(lanes)
    draw = lambda *shape: torch.randn(*shape, generator=NUMBERS)
    old = {
        "w": draw(slots * len(lanes), 3), "n": draw(slots * len(lanes)).double(),
        "left": draw(slots * len(lanes)),
    }  # fmt: skip
    of = (clients, slots) if per_slot else (clients,)
    copies = {"w": draw(*of, 3), "n": draw(*of).double()}
    weights = 0.01 * torch.rand(clients, slots, generator=NUMBERS, dtype=torch.double)
    weights[:, 1] = 0
    whole = Upload("m", torch.arange(clients), copies, weights, per_slot, Average(), lanes=lanes)
    new, written = reduce_slots(old, whole)
    assert written.tolist() == [True, False] * len(lanes)
    ends = torch.tensor(lanes).cumsum(0).tolist()
    for lane, (count, end) in enumerate(zip(lanes, ends, strict=True)):
        own = slice(end - count, end)
        mine = slice(lane * slots, (lane + 1) * slots)
        alone = Upload(
            "m", torch.arange(count), {k: v[own] for k, v in copies.items()}, weights[own],
            per_slot, Average(),
        )  # fmt: skip
        expected, _ = reduce_slots({k: v[mine] for k, v in old.items()}, alone)
        for name, value in expected.items():
            torch.testing.assert_close(new[name][mine], value)
            assert torch.equal(new[name][mine][1], old[name][mine][1])  # which nobody wrote


def test_a_slot_is_the_mean_by_weight_however_small_the_weights_are() -> None:
    copies = {"w": torch.tensor([[1.0], [3.0]])}
    weights = torch.tensor([[0.003, 0.0], [0.001, 0.0]], dtype=torch.double)
    upload = Upload("m", torch.arange(2), copies, weights, False, Average())
    new, written = reduce_slots({"w": torch.tensor([[7.0], [8.0]])}, upload)
    assert new["w"].tolist() == [[1.5], [8.0]] and written.tolist() == [True, False]
    part = sum_part(upload, torch.tensor([0.008, 0.0], dtype=torch.double))
    assert part["w"].tolist() == [[0.75], [0.0]] and part["w"].dtype == torch.double
