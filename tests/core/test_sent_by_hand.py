"""What the server sends to whom, and how many bytes that is, with small numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import fedblocks as fb
from fedblocks.core.blocks import Generated, Mixture, Selection
from fedblocks.core.parts import Value
from fedblocks.core.private_state import Pack, StackedState
from fedblocks.core.server import (
    Beginnings,
    Cohort,
    Kept,
    bytes_per_slot,
    default_read,
    gather,
    read_of_some,
    request,
    sent_copies,
)
from fedblocks.core.state import initial_state

SLOTS = {"w": torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])}  # three slots of two numbers


def cohort(ids: list[int], population: int = 9) -> Cohort:
    sizes = torch.tensor([float(10 + i) for i in ids]).double()
    return Cohort(torch.tensor(ids), sizes, {"kind": torch.tensor(ids) % 2}, population, 4, 0)


def test_clients_are_sent_slots_mixtures_or_what_was_made_for_them() -> None:
    one = sent_copies(SLOTS, Selection(torch.tensor([2, 0])))["w"]
    assert one.tolist() == [[5.0, 6.0], [1.0, 2.0]]
    side = sent_copies(SLOTS, Selection(torch.tensor([[2, 1], [0, 0]])))["w"]
    assert side.tolist() == [[[5.0, 6.0], [3.0, 4.0]], [[1.0, 2.0], [1.0, 2.0]]]
    weights = torch.tensor([[0.5, 0.0, 0.5], [0.0, 1.0, 0.0]]).double()
    mixed = sent_copies(SLOTS, Mixture(weights))["w"]
    assert mixed.tolist() == [[3.0, 4.0], [3.0, 4.0]] and mixed.dtype == torch.float32
    made = {"w": torch.zeros(2, 2)}
    assert sent_copies(SLOTS, Generated(made)) is made


def test_what_all_clients_get_alike_is_one_view() -> None:
    shared = sent_copies({"w": torch.tensor([[7.0, 8.0]])}, Selection(torch.zeros(4).long()))["w"]
    assert shared.tolist() == [[7.0, 8.0]] * 4 and shared.stride(0) == 0
    pool = fb.Pool(Value(torch.zeros(2)), 3)
    whole = default_read(pool, cohort([1, 4]))
    everything = sent_copies(SLOTS, whole)["w"]
    assert everything.tolist() == [SLOTS["w"].tolist()] * 2 and everything.stride(0) == 0
    part = Selection(torch.tensor([[0, 1]]).expand(2, -1))  # the same for all, but not all slots
    assert sent_copies(SLOTS, part)["w"].shape == (2, 2, 2)


def test_by_default_a_client_reads_its_own_slot_or_all() -> None:
    part = Value(torch.zeros(2))
    assert default_read(fb.PerClient(part, "own"), cohort([4, 1])).slots.tolist() == [4, 1]  # type: ignore[union-attr]
    assert default_read(fb.Shared(part), cohort([4, 1])).slots.tolist() == [0, 0]  # type: ignore[union-attr]
    assert default_read(fb.Pool(part, 2), cohort([4, 1])).slots.tolist() == [[0, 1]] * 2  # type: ignore[union-attr]


def test_some_of_a_cohort_read_what_they_would_read_among_all() -> None:
    places = torch.tensor([2, 0])
    assert read_of_some(Selection(torch.tensor([5, 6, 7])), places).slots.tolist() == [7, 5]  # type: ignore[union-attr]
    repeated = read_of_some(Selection(torch.arange(2).expand(3, -1)), places).slots  # type: ignore[union-attr]
    assert repeated.tolist() == [[0, 1]] * 2 and repeated.stride(0) == 0
    mixed = read_of_some(Mixture(torch.tensor([[1.0], [2.0], [3.0]])), places)
    assert mixed.weights.tolist() == [[3.0], [1.0]]  # type: ignore[union-attr]
    made = read_of_some(Generated({"w": torch.tensor([1.0, 2.0, 3.0])}), places)
    assert made.values["w"].tolist() == [3.0, 1.0]  # type: ignore[union-attr]
    some = cohort([3, 4, 5]).take(places)
    assert some.ids.tolist() == [5, 3] and some.sizes.tolist() == [15.0, 13.0]
    assert some.tags["kind"].tolist() == [1, 1] and (len(some), some.population) == (2, 9)


def test_a_second_download_has_the_slots_that_were_asked_for() -> None:
    asked = request(SLOTS, torch.tensor([0.0, 0.5, -1.0]))["w"]
    assert asked.tolist() == [[0.0, 0.0], [3.0, 4.0], [5.0, 6.0]]
    both = request(SLOTS, torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]))["w"]
    assert both[0].tolist() == [[1.0, 2.0], [0.0, 0.0], [0.0, 0.0]]
    assert both[1].tolist() == [[0.0, 0.0], [0.0, 0.0], [5.0, 6.0]]


def normed() -> fb.Net:
    """Four weights, and a norm of two features."""
    return fb.Net.of(nn.Sequential(nn.Linear(2, 2, bias=False), nn.BatchNorm1d(2)))


@dataclass(frozen=True, eq=False)
class Pooled(fb.FedAvg):
    """A pool that is sent on request, and one that is always sent."""

    def blocks(self) -> Any:
        return {
            "model": fb.Fresh(self.net.whole),
            "pool": fb.Pool(self.net.whole, 3, of="model", on_request=True),
            "plain": fb.Pool(self.net.whole, 2, of="model"),
        }


def test_slots_are_counted_with_their_statistics() -> None:
    """4 weights, 2 scales, 2 shifts, 2 means and 2 variances: 12 single numbers of 4 bytes."""
    method = Pooled(normed())
    state = initial_state({"all": method}, 4, seed=0)
    assert bytes_per_slot(method, state) == {"pool": 48}
    sent = gather(method, state, cohort([0, 2, 3]), Beginnings.of(method, 0))
    assert sent.bytes_down["plain"].tolist() == [2 * 48] * 3  # both slots
    assert list(sent.on_request) == ["pool"] and "pool" not in sent.blocks
    assert sent.blocks["model"]["0.weight"].shape == (3, 2, 2)
    assert sent.blocks["plain"]["0.weight"].shape == (3, 2, 2, 2)


@pytest.mark.parametrize(("statistics", "numbers"), [("average", 12), ("local", 8)])
def test_statistics_that_stay_on_clients_are_no_traffic(statistics: Any, numbers: int) -> None:
    method = fb.FedAvg(normed(), statistics=statistics)
    state = initial_state({"all": method}, 4, seed=0)
    sent = gather(method, state, cohort([0, 2, 3]), Beginnings.of(method, 0))
    assert sent.bytes_down["model"].tolist() == [4 * numbers] * 3


def test_what_clients_kept_is_in_the_order_of_the_cohort() -> None:
    private = {i: {"own": {"v": torch.tensor([float(i)])}} for i in (1, 3)}
    kept = Kept.of(private, torch.tensor([3, 2, 1]))
    other = {"v": torch.tensor([-1.0])}
    assert kept.side_by_side("own", other)["v"].tolist() == [[3.0], [-1.0], [1.0]]
    assert list(kept.names) == ["own"]
    stacked = StackedState(Pack((1, 3), {"own": {"v": torch.tensor([[1.0], [3.0]])}}))
    whole = Kept.of(stacked, torch.tensor([1, 3]))
    assert whole.clients == [] and whole.side_by_side("own", other)["v"].tolist() == [[1.0], [3.0]]
    turned = Kept.of(stacked, torch.tensor([3, 1]))
    assert turned.side_by_side("own", other)["v"].tolist() == [[3.0], [1.0]]
    nobody = Kept.of({}, torch.tensor([3, 1]))
    assert nobody.side_by_side("own", other)["v"].tolist() == [[-1.0], [-1.0]]


def test_what_an_earlier_version_kept_less_of_is_completed() -> None:
    """Clients that trained before and after an update of the library, in one cohort."""
    old, new = {"v": torch.ones(2)}, {"v": torch.full((2,), 2.0), "w": torch.full((1,), 3.0)}
    for private in ({0: {"o": old}, 1: {"o": new}}, {0: {"o": new}, 1: {"o": old}}):
        kept = Kept.of(private, torch.tensor([0, 1]))
        assert kept.names["o"].keys() == {"v", "w"}
        both = kept.side_by_side("o", {"v": torch.zeros(2), "w": torch.zeros(1)})
        assert both["v"].sum().item() == 6.0  # 2 * 1 + 2 * 2
        assert sorted(both["w"].flatten().tolist()) == [0.0, 3.0]
