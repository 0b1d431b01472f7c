"""Keys and noise, against splitmix64 on unsigned integers; and who writes which slot."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedblocks.core.aggregate import aggregate
from fedblocks.core.kept_memory import memory_of
from fedblocks.core.optimizers import SGD
from fedblocks.core.phases import Update
from fedblocks.core.random import derive, fold, uniform
from fedblocks.core.reduction import _weighted_sum, reduce_slots
from fedblocks.core.rules import Average
from fedblocks.core.server import Cohort
from fedblocks.core.state import initial_state
from fedblocks.core.uploads import Upload
from fedblocks.methods.fedavg import FedAvg
from fedblocks.testing import small_net

WRAP = 2**64
KEYS = [0, 1, -1, 2**63 - 1, -(2**63), 1234567890123456789, 27**13, 41**11]


def finalised(z: int) -> int:
    """The output function of splitmix64 (Steele, Lea and Flood, 2014)."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % WRAP
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % WRAP
    return z ^ (z >> 31)


@pytest.mark.parametrize("key", KEYS)
def test_noise_is_splitmix64_finalised_twice(key: int) -> None:
    bits = [finalised(finalised((key + i * 0x9E3779B97F4A7C15) % WRAP)) for i in range(1, 33)]
    expected = [((b >> 41) + 0.5) / 2**23 for b in bits]
    assert uniform(torch.tensor(key), (8, 4)).flatten().tolist() == expected


@pytest.mark.parametrize("key", KEYS)
def test_a_folded_key_is_splitmix64_of_key_and_number(key: int) -> None:
    for number in (0, 1, 2, 1000, 2**21):
        expected = finalised((key + (number + 1) * 0x94D049BB133111EB) % WRAP)
        assert fold(torch.tensor(key), number).item() % WRAP == expected
        assert fold(torch.tensor(key), torch.tensor(number)).item() % WRAP == expected


def test_a_seed_is_the_first_63_bits_of_a_hash_of_its_path() -> None:
    """sha256 of "int:3/str:order/int:5", the first eight bytes from the lowest on."""
    assert derive(3, "order", 5) == 2075403358533290196
    assert len({derive(3), derive(4), derive(3, 4), derive(3, "4"), derive(34)}) == 5


def test_a_client_without_weight_does_not_write_its_own_slot() -> None:
    old = {"w": torch.tensor([[-1.0], [-2.0], [-3.0], [-4.0]])}
    copies = {"w": torch.tensor([[1.0], [2.0], [3.0]])}
    weights = torch.tensor([[0.5], [0.0], [2.0]]).double()
    upload = Upload("own", torch.tensor([3, 1, 0]), copies, weights, False, Average(), own=True)
    new, written = reduce_slots(old, upload)
    assert new["w"].flatten().tolist() == [3.0, -2.0, -3.0, 1.0]
    assert written.tolist() == [True, False, False, True]


@pytest.mark.parametrize("per_slot", [False, True])
def test_large_copies_are_added_up_in_pieces_as_small_ones_are(
    per_slot: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three clients, two slots, 3 x 5 numbers: 45 or 90 of them, in pieces of 7 at most."""
    shape = (3, 2, 3, 5) if per_slot else (3, 3, 5)
    copies = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    share = torch.tensor([[0.5, 0.0], [0.25, 1.0], [0.25, 0.0]]).double()
    whole = _weighted_sum(share, copies, per_slot, torch.double)
    monkeypatch.setattr("fedblocks.core.reduction._PIECE", 21)
    pieces = _weighted_sum(share, copies, per_slot, torch.double)
    assert pieces.shape == (2, 3, 5) and torch.allclose(pieces, whole, rtol=0, atol=1e-15)
    own = copies[:, 1] if per_slot else copies
    assert torch.allclose(whole[1], own[1].double())


def test_a_round_ends_with_the_mean_by_weight_and_a_count_of_one_more() -> None:
    method = FedAvg(small_net())
    state = initial_state({"all": method}, 2, seed=0)
    (old,) = state.server.values()
    copies = {k: torch.stack([0 * v[0], 0 * v[0] + 8]) for k, v in old.items()}
    weights = torch.tensor([[1.0], [3.0]]).double()
    uploads = {"model": Upload("model", torch.arange(2), copies, weights, False, Average())}
    cohort = Cohort(torch.arange(2), weights[:, 0], {}, 2, 0, 0)
    after = aggregate({"all": method}, state, {"all": uploads}, {"all": cohort})
    assert after.round == 1 and {*after.server["model"]["0.bias"].flatten().tolist()} == {6.0}


def test_what_an_optimizer_kept_is_not_changed_by_the_next_round() -> None:
    kept = {"velocity/0": torch.tensor([3.0]), "count/0": torch.tensor(5.0)}
    blocks = {"model": {"w": torch.zeros(1)}}
    update = Update(("model",), lambda blocks, batch: torch.zeros(()), 0.1, SGD(momentum=0.5))
    local: Any = SimpleNamespace(keep_optimizer=True, tensors={"size": torch.tensor(2.0)})
    trained = [("model", "w", blocks["model"]["w"])]
    memory = memory_of(update, trained, 0, kept, local)
    assert memory["velocity"][0].tolist() == [3.0] and memory["count"][0].item() == 5.0
    memory["velocity"][0].add_(1)
    memory["count"][0].add_(1)
    assert kept["velocity/0"].tolist() == [3.0] and kept["count/0"].item() == 5.0
    fresh = memory_of(update, trained, 0, None, local)
    assert fresh["velocity"][0].tolist() == [0.0] and fresh["count"][0].item() == 0.0
    local.keep_optimizer = False
    assert [*memory_of(update, trained, 0, kept, local)] == ["velocity"]
