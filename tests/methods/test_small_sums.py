"""Sums, means and orders inside of methods, worked out by hand: groups of unequal sizes, more than
one piece, and numbers that are neither 0 nor 1.
"""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedblocks as fb
from fedblocks.core.rules import Average
from fedblocks.core.server import Cohort
from fedblocks.core.uploads import Upload
from fedblocks.methods._common.membership import (
    average_members,
    first_changes,
    group_clients,
    membership,
    send_home,
)
from fedblocks.methods.fedmn import router
from fedblocks.methods.fedmn.router import Moments, Router
from fedblocks.methods.pfedhn import EMBEDDINGS, Hypernetwork, PFedHN, generate
from fedblocks.testing.adapters import ADAPTERS


def cohort(ids: list[int], population: int, sizes: list[float] | None = None) -> Cohort:
    known = torch.tensor(sizes or [1.0] * len(ids)).double()
    return Cohort(torch.tensor(ids), known, {}, population, 0, 0)


def test_papers_are_as_they_were_published() -> None:
    every = {**fb.METHODS}
    every |= {name: type(next(iter(make().methods().values()))) for name, make in ADAPTERS.items()}
    years = {name: kind.paper.year for name, kind in every.items()}
    by_year: dict[int, list[str]] = {}
    for name, year in years.items():
        by_year.setdefault(year, []).append(name)
    assert {year: " ".join(sorted(names)) for year, names in by_year.items()} == {
        0: "local",
        2004: "mean_reg_mtl",
        2017: "fedavg",
        2019: "fedavg_ft fedper",
        2020: "apfl fedprox ifca lg_fedavg per_fedavg pfedme scaffold",
        2021: "clustered ditto fedadagrad fedadam fedamp fedbn fedem fedfomo fedrecon fedrep "
        "fedyogi heur_fedamp moon pfedhn",
        2022: "dynamic_routing fedbabu fedmn fedmn_reference flow modfl pfedmb",
        2023: "fedala fedavg_lora flow_v2",
        2024: "dual_lora ffa_lora product_lora",
        2025: "fedsa_lora",
    }


def test_the_rest_of_the_clients_count_alike_and_those_who_never_train_do_not() -> None:
    method = next(iter(ADAPTERS["dual_lora"]().methods(other="rest").values()))
    down, (up,) = {}, method.adapted.zero_factors
    server = {"lora.A": down, "lora.B": {up: torch.ones(4, 3, 2)}}
    reads = method.reads(server, cohort([0, 2], 4))
    weights = reads["lora.A"].weights  # type: ignore[union-attr]
    third = 1 / 3
    assert weights.tolist() == [[0.0, third, third, third], [third, third, 0.0, third]]
    assert reads["lora.B"].weights is weights and weights.dtype == torch.double  # type: ignore[union-attr]
    unseen = replace(cohort([0, 2], 4), unseen=torch.tensor([1]))
    (first, _) = method.reads(server, unseen)["lora.A"].weights.tolist()  # type: ignore[union-attr]
    assert first == [0.0, 0.0, 0.5, 0.5]
    server["lora.B"][up][2] = 0  # as it starts: its client has never trained
    (first, _) = method.reads(server, cohort([0, 2], 4))["lora.A"].weights.tolist()  # type: ignore[union-attr]
    assert first == [0.0, 0.5, 0.0, 0.5]
    one = {"lora.A": down, "lora.B": {up: torch.ones(1, 3, 2)}}
    alone = method.reads(one, cohort([0], 1))
    assert alone["lora.B"].weights.tolist() == [[0.0]]  # type: ignore[union-attr]


def test_groups_of_equal_weight_are_in_the_order_of_how_far_they_went_in_all() -> None:
    """Two clients went 2 each to the right, 4 in all; one went 3 up. All three weigh 1, 1 and 2."""
    changes = torch.tensor([[0.0, 3.0], [2.0, 0.0], [2.0, 0.0]])
    assert group_clients(changes, torch.tensor([2.0, 1.0, 1.0]), 2).tolist() == [1, 0, 0]
    assert group_clients(changes, torch.tensor([2.5, 1.0, 1.0]), 2).tolist() == [0, 1, 1]
    assert group_clients(changes, torch.tensor([2.0, 1.0, 0.5]), 2).tolist() == [0, 1, 1]


def test_a_cluster_is_torn_by_a_mean_of_unequal_weights() -> None:
    """(3/2 - 1) / 3 is 1/6 and below 0.4; the longest change is 1."""
    method = fb.Clustered(fb.small_net(), epsilon1=0.4, epsilon2=0.9, min_size=2)
    changes = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0]])
    weights = torch.tensor([1.5, 1.0, 0.5]).double()
    assert method.torn(changes, weights) and method.torn(changes, 10 * weights)
    assert not replace(method, epsilon1=0.15).torn(changes, weights)
    assert not replace(method, epsilon2=1.0).torn(changes, weights)


def test_members_are_averaged_by_all_their_weights_and_a_slot_of_nobody_stays() -> None:
    weights = torch.tensor([[1.0, 2.0, 0.0], [0.0, 1.0, 0.0], [5.0, 0.0, 0.0]]).double()
    copies = {"w": torch.tensor([[4.0], [8.0], [9.0]])}
    upload = Upload("model", torch.arange(3), copies, weights, False, Average())
    before = {"w": torch.tensor([[-1.0], [-2.0], [-3.0]])}
    after = average_members(before, upload, torch.tensor([1, 1, 0]), 3)
    assert after["w"].flatten().tolist() == [9.0, (3 * 4 + 1 * 8) / 4, -3.0]


def test_first_changes_are_those_from_the_first_slot_without_statistics() -> None:
    copies = {"w": torch.tensor([[3.0, 4.0], [5.0, 6.0]]), "running_mean": torch.ones(2, 1)}
    upload = Upload("a", torch.arange(2), copies, torch.ones(2, 1), False, Average())
    other = {"v": torch.tensor([[1.0], [2.0]])}
    head = Upload("b", torch.arange(2), other, torch.ones(2, 1), False, Average())
    before = {
        "a": {"w": torch.tensor([[1.0, 2.0], [9.0, 9.0]]), "running_mean": torch.zeros(2, 1)},
        "b": {"v": torch.tensor([[0.5], [9.0]])},
    }
    changes = first_changes(before, {"a": upload, "b": head}, "a", "b")
    assert changes.tolist() == [[2.0, 2.0, 0.5], [4.0, 4.0, 1.5]]


def test_clients_are_sent_home_and_all_slots_go_out_while_one_with_data_has_none() -> None:
    home = torch.tensor([1, -1, 0, -1])
    sent = lambda ids, slots, sizes=None: send_home(
        home, cohort(ids, 4, sizes), slots
    ).slots.tolist()
    assert sent([0, 2], 3) == [[1], [0]]
    assert sent([0, 1], 3) == [[0, 1, 2], [0, 1, 2]]
    assert sent([0, 1], 3, [2.0, 0.0]) == [[1], [0]]  # it has no data to choose by
    assert sent([0, 1], 1) == [[1], [0]]
    client: Any = SimpleNamespace(size=torch.tensor(2.0).double())
    own = membership(torch.tensor([1]), 3, client)
    assert own.tolist() == [0.0, 1.0, 0.0] and own.dtype == torch.double
    assert membership(torch.tensor([-1]), 3, client).tolist() == [0.0] * 3


def test_a_hypernetwork_bends_between_its_layers_and_not_after_the_last() -> None:
    """Embeddings 1 and -2: twice that and one more is 3 and -3, which becomes 0."""
    params = {
        EMBEDDINGS: torch.tensor([[1.0], [7.0], [-2.0]]),
        "0.weight": torch.tensor([[2.0]]), "0.bias": torch.tensor([1.0]),
        "1.weight": torch.tensor([[1.0], [-1.0]]), "1.bias": torch.tensor([0.0, -1.0]),
    }  # fmt: skip
    models = generate(params, torch.tensor([0, 2]))
    assert models.tolist() == [[3.0, -4.0], [0.0, -1.0]]


def test_a_hypernetwork_is_as_wide_as_its_clients_need_and_starts_as_dense_layers_do() -> None:
    net = fb.small_net()  # 6 x 5 + 5 + 5 x 4 + 4 = 59 numbers
    method = PFedHN(net, hidden=8, hidden_layers=2)
    assert method.part(9).widths == (3, 8, 8, 59)  # 1 + 9 // 4
    assert PFedHN(net, hidden=8, hidden_layers=1, embedding=4).part(9).widths == (4, 8, 59)
    params = Hypernetwork(2000, (4, 16, 50), torch.float64).init(1)
    assert params[EMBEDDINGS].shape == (2000, 4) and abs(params[EMBEDDINGS].std() - 1) < 0.05
    for name, inputs in (("0.weight", 4), ("1.weight", 16)):
        bound = inputs**-0.5
        assert (
            0.9 * bound < params[name].max() <= bound
            and -bound <= params[name].min() < -0.8 * bound
        )
    assert params["1.weight"].shape == (50, 16) and params["1.bias"].shape == (50,)
    rows = torch.arange(118.0).view(2, 59).double()
    cut = method.cut(rows)
    assert [tuple(value.shape) for value in cut.values()] == [(2, 5, 6), (2, 5), (2, 4, 5), (2, 4)]
    assert cut["0.bias"][1].tolist() == rows[1, 30:35].tolist()


def test_gradients_are_shortened_together_and_short_ones_stay() -> None:
    method = PFedHN(fb.small_net(), clip=2.5)
    long = method.shorten([torch.tensor([3.0]), torch.tensor([0.0, 4.0])])
    assert [g.tolist() for g in long] == [[1.5], [0.0, 2.0]]
    short = [torch.tensor([0.5]), torch.tensor([0.0, 2.0])]
    assert [g.tolist() for g in method.shorten(short)] == [[0.5], [0.0, 2.0]]


def test_a_router_looks_at_all_examples_a_piece_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five rows, of which four are real, in pieces of two: 1 + 2 + 3 + 4 of 4, and squares."""
    monkeypatch.setattr(router, "PIECE", 2)
    seen: list[int] = []

    def sums(self: Any, params: Any, client: Any, rows: Tensor, real: Tensor) -> Tensor:
        seen.append(len(rows))
        values = rows.double() * real
        return torch.stack([values.sum()[None], values.square().sum()[None]])

    monkeypatch.setattr(Router, "_sums", sums)
    mask = torch.tensor([1.0, 1, 1, 1, 0])
    client: Any = SimpleNamespace(
        rows=torch.tensor([1, 2, 3, 4, 9]), mask=mask, size=torch.tensor(4.0)
    )
    empty: Any = SimpleNamespace(rows=client.rows, mask=0 * mask, size=torch.tensor(0.0))
    own = object.__new__(Router)
    assert own._mean({}, client).tolist() == [[2.5], [7.5]] and seen == [2, 2, 1]
    assert own.measure({}, client)["square"].tolist() == [7.5]
    assert own._mean({}, empty).tolist() == [[0.0], [0.0]]
    start = Moments(2, torch.float64).init(0)
    assert start["mean"].tolist() == [0.0, 0.0] and start["square"].tolist() == [1.0, 1.0]


def test_a_router_starts_with_a_head_as_wide_as_it_is_told_to() -> None:
    path = SimpleNamespace(
        classes=4, dtype=torch.float64, summary=lambda width: nn.Linear(6, width)
    )
    for spread in (1.0, 10.0):
        own = Router(path, 7, 3, 2, True, True, 0, spread=spread, joint=spread > 1)  # type: ignore[arg-type]
        module = own._module()
        head = module[-1]  # type: ignore[index]
        assert (head.in_features, head.out_features, own.width) == (5, 7, 5)
        assert len(module) == (4 if spread > 1 else 3)  # type: ignore[arg-type]
        largest = float(head.weight.detach().abs().max())
        assert 0.7 * spread / math.sqrt(5) < largest <= spread / math.sqrt(5)


@pytest.mark.parametrize("kind", [fb.FedMN, fb.FedMNReference])
def test_a_router_is_as_wide_as_its_method_says(kind: Any) -> None:
    method = kind(fb.small_net(), modules=(2, 3), summary_width=7, label_width=5)
    own = method.router
    assert (own.summary_width, own.label_width, own.width) == (7, 5, 12)
    # of 2 encoders, 3 modules and the outputs that follow; the printed one has 2 more
    plain = fb.FedMN(fb.small_net(), modules=(2, 3)).router.gates
    assert own.gates == plain + (2 if kind is fb.FedMNReference else 0)
    stages = [tuple(value.shape) for name, value in own.net.init(0).items() if "weight" in name]
    assert (5, 4) in stages and stages[-1] == (own.gates, 12)
