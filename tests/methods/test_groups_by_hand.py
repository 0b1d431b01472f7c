"""Groupings of clients and what follows from them, by hand; and what FedMN trains in which mode."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedblocks as fb
from fedblocks.core.admission import fitting
from fedblocks.core.own_code import own_name
from fedblocks.core.rules import Average
from fedblocks.core.server import Cohort
from fedblocks.core.uploads import Upload
from fedblocks.methods._common.clustering import clearest, silhouette
from fedblocks.methods.fedmn.gates import shares
from fedblocks.methods.fedmn.warm_start import module_changes

NET = fb.small_net()


def test_one_group_is_numbered_by_whole_numbers() -> None:
    """Two rows are always one group; so are rows that are all alike."""
    for similarity in (np.eye(2), np.ones((4, 4))):
        clarity, labels = clearest(similarity, 3)
        assert clarity == 0.0 and labels.tolist() == [0] * len(similarity)
        assert labels.dtype == np.int64


def test_the_clearest_grouping_is_of_rows_far_from_the_other_group() -> None:
    """Two pairs: 0.1 apart inside, 1 between. Each row's silhouette is (1 - 0.1) / 1."""
    distance = np.ones((4, 4))
    distance[:2, :2] = distance[2:, 2:] = 0.1
    np.fill_diagonal(distance, 0.0)
    labels = np.array([0, 0, 1, 1])
    assert silhouette(distance, labels) == pytest.approx(0.9)
    assert silhouette(distance, np.array([0, 0, 1, 2])) == pytest.approx((0.9 + 0.9) / 4)
    clarity, found = clearest(1 - distance, 3)
    assert clarity == pytest.approx(0.9) and found.tolist() == [0, 0, 1, 1]


def upload(ids: list[int], copies: Any, weights: torch.Tensor) -> Upload:
    return Upload("clusters", torch.tensor(ids), copies, weights.double(), False, Average())


def test_a_client_without_a_home_is_averaged_nowhere_when_clusters_are_renewed() -> None:
    """Client 1 has no data and no home: its copy counts in no cluster, and nothing fails."""
    method = fb.Clustered(NET, max_clusters=2, first_round=0, epsilon1=1e-9)
    copies = {"w": torch.tensor([[4.0], [99.0], [8.0]])}
    weights = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 3.0]])
    before = {"clusters": {"w": torch.tensor([[1.0], [2.0]])}}
    server = {**before, "membership": {"value": torch.tensor([[0.0], [-1.0], [1.0]]).double()}}
    cohort = Cohort(torch.arange(3), torch.tensor([1.0, 0.0, 3.0]).double(), {}, 3, 5, 0)
    uploads = {"clusters": upload([0, 1, 2], copies, weights)}
    full: Any = {**before, "membership": server["membership"]}
    after = method.conclude(server, full, uploads, cohort)
    assert after["clusters"]["w"].flatten().tolist() == [4.0, 8.0]
    assert after["membership"]["value"].flatten().tolist() == [0.0, -1.0, 1.0]


RESTING = {"train_router": "nothing", "router_start": "drawn"}


@pytest.mark.parametrize(
    ("options", "losses", "rates"),
    [
        ({}, ["loss"], [0.2]),
        ({"router_lr": 0.05}, ["module_loss", "loss"], [0.2, 0.05]),
        ({"router_lr": 0.05, "gate_mode": "soft"}, ["loss", "loss"], [0.2, 0.05]),
        (RESTING, ["module_loss"], [0.2]),
        ({**RESTING, "gate_mode": "soft"}, ["loss"], [0.2]),
    ],
    ids=range(5),
)
def test_modules_and_router_train_together_or_in_turn(
    options: dict[str, Any], losses: list[str], rates: list[float]
) -> None:
    method = fb.FedMN(NET, lr=0.2, modules=(2, 2), **options)
    (phase,) = method.phases()
    names = [own_name(update.loss).rpartition(".")[2] for update in phase.updates]
    assert names == losses and [update.lr for update in phase.updates] == rates
    together = not options
    assert phase.updates[0].train == ("encoders", "outputs", *(("router",) if together else ()))


def test_uploads_fit_if_every_one_of_them_does() -> None:
    slots = {"clusters": {"w": torch.zeros(1, 2)}, "other": {"w": torch.zeros(1, 2)}}
    right = upload([0], {"w": torch.zeros(1, 2)}, torch.ones(1, 1))
    wrong = upload([0], {"w": torch.zeros(1, 3)}, torch.ones(1, 1))
    assert fitting({"a": right, "b": right}, slots) and fitting({}, slots)
    assert not fitting({"a": right, "b": wrong}, slots)
    assert not fitting({"a": wrong, "b": right}, slots)


@pytest.mark.parametrize("everybody", [0.0, 1.0, 4.0])
def test_modules_are_averaged_over_all_clients_where_that_is_printed(everybody: float) -> None:
    """Of the examples of everybody, a quarter used the first output and three quarters the second;
    without any examples nothing changes.
    """
    method = fb.FedMN(NET, modules=(2, 2), normalise_blocks=False)
    shares = torch.tensor([[0.25, 0.0], [0.0, 0.75]]).double()
    uploads: Any = {"outputs": upload([0, 1], {}, everybody * shares)}
    sizes = torch.tensor([everybody, 0.0]).double()
    cohort = Cohort(torch.arange(2), sizes, {}, 2, 3, 0)
    server = {"outputs": {"w": torch.tensor([[8.0], [8.0]])}}
    after = method.conclude(server, server, uploads, cohort)["outputs"]["w"].flatten().tolist()
    assert after == ([2.0, 6.0] if everybody else [8.0, 8.0])


def test_what_clients_changed_of_modules_is_side_by_side_without_statistics() -> None:
    copies = {"w": torch.tensor([[[3.0], [5.0]]]), "running_mean": torch.ones(1, 2, 1)}
    uploads: Any = {"encoders": upload([0], copies, torch.ones(1, 2))}
    uploads["outputs"] = upload([0], {"v": torch.tensor([[[7.0]]])}, torch.ones(1, 1))
    before = {"encoders": {"w": torch.tensor([[1.0], [1.5]]), "running_mean": torch.zeros(2, 1)}}
    before["outputs"] = {"v": torch.tensor([[10.0]])}
    changes = module_changes(before, uploads, ("encoders", "outputs"))
    assert changes.tolist() == [[2.0, 3.5, -3.0]]


def test_a_target_is_a_layer_with_tensors_of_its_own() -> None:
    module = nn.Sequential(OrderedDict(outer=nn.Sequential(OrderedDict(inner=nn.Linear(4, 4)))))
    assert fb.lora(module, 1, targets="inner").targets == ("outer.inner",)
    with pytest.raises(
        fb.UserError, match='no layer outside of the head matches the target "outer"'
    ):
        fb.lora(module, 1, targets="outer")


def test_all_of_a_prediction_comes_through_a_single_module() -> None:
    """One encoder, two modules of which the second is closed for the output, one output."""
    gates = [torch.ones(2, 1), torch.tensor([[1.0, 0.0]])]
    sent = [torch.ones(1), torch.ones(2), torch.ones(1)]
    assert [own.tolist() for own in shares(gates, sent)] == [[1.0], [1.0, 0.0]]
    single = shares([torch.ones(1, 1)], [torch.ones(1), torch.ones(1)])
    assert [own.tolist() for own in single] == [[1.0]]
