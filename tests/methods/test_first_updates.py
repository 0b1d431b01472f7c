"""Clusters of the clients' first updates: how many there are, how they are numbered, who waits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedblocks.core.errors import UserError
from fedblocks.core.net import Net
from fedblocks.engines.round import Experiment, run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.methods._common.clustering import alike, natural_groups, rotate_rows, silhouette
from fedblocks.methods._common.membership import group_clients
from fedblocks.methods.ifca import IFCA
from fedblocks.testing import small_federation, small_net
from fedblocks.testing.federations import without_training_rows

Floats = np.ndarray[Any, np.dtype[np.float64]]


def rows_around(centres: int, each: int, spread: float, seed: int = 0) -> Floats:
    """[centres * each, 30]: rows around centres of length 1, one centre after the other."""
    draw = np.random.Generator(np.random.PCG64(seed))
    middle = np.eye(30)[:centres].repeat(each, 0)
    return middle + spread * draw.standard_normal(middle.shape)


def cosines(rows: Floats) -> Floats:
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit @ unit.T


@pytest.mark.parametrize("groups", [2, 3, 5])
@pytest.mark.parametrize("spread", [0.05, 0.15])
def test_as_many_groups_are_found_as_there_are(groups: int, spread: float) -> None:
    found = natural_groups(cosines(rows_around(groups, 4, spread)), most=8)
    assert found.tolist() == np.arange(groups).repeat(4).tolist()


@pytest.mark.parametrize("rows", [2, 3, 12, 40])
def test_rows_around_one_centre_are_one_group(rows: int) -> None:
    """A level of 1 in 50 each; none of these 40 draws is taken for several groups but one."""
    several = [
        natural_groups(cosines(rows_around(1, rows, 0.3, s)), 8).max() > 0 for s in range(10)
    ]
    assert sum(several) <= 1


def test_rows_that_are_all_the_same_are_one_group() -> None:
    assert alike(torch.ones(6, 3), "auto").tolist() == [0] * 6


def test_there_are_never_more_groups_than_may_be() -> None:
    assert natural_groups(cosines(rows_around(5, 4, 0.05)), most=3).max() + 1 <= 3
    assert natural_groups(cosines(rows_around(5, 4, 0.05)), most=1).tolist() == [0] * 20


def test_a_silhouette_compares_the_own_group_with_the_next() -> None:
    rows = rows_around(3, 3, 0.2)[:7]  # groups of 3, 3 and 1
    distance, labels = 1 - cosines(rows), np.array([0, 0, 0, 1, 1, 1, 2])
    expected = []
    for i in range(6):
        own = [distance[i, j] for j in range(7) if labels[j] == labels[i] and j != i]
        others = [distance[i, labels == k].mean() for k in range(3) if k != labels[i]]
        inside, outside = np.mean(own), min(others)
        expected.append((outside - inside) / max(inside, outside))
    assert silhouette(distance, labels) == pytest.approx(sum(expected) / 7, abs=1e-12)


def test_a_rotation_keeps_the_mean_and_the_covariance_of_unit_rows() -> None:
    """Before they are made unit again, rotated rows have the same mean and sum of squares; rows
    that are all alike stay so.
    """
    draw = np.random.Generator(np.random.PCG64(1))
    assert np.allclose(rotate_rows(np.ones((5, 5)), draw), 1)
    before = cosines(rows_around(2, 10, 0.1))
    after = rotate_rows(before, draw)
    assert np.allclose(np.diag(after), 1) and not np.allclose(after, before, atol=0.3)


def test_the_group_with_the_most_weight_is_the_first_whatever_the_order_of_clients() -> None:
    changes = torch.tensor([[1.0, 0.0], [0.0, 3.0], [1.0, 0.1], [0.1, 3.0]])
    by_weight = torch.tensor([5.0, 1.0, 5.0, 1.0])
    assert group_clients(changes, by_weight, 2).tolist() == [0, 1, 0, 1]
    alike_heavy = torch.ones(4)  # the longer change is the first
    assert group_clients(changes, alike_heavy, 2).tolist() == [1, 0, 1, 0]
    assert group_clients(changes.flip(0), alike_heavy, 2).tolist() == [0, 1, 0, 1]


def test_clusters_wait_for_a_round_in_which_somebody_has_data() -> None:
    data = without_training_rows(small_federation(), 0)
    method = IFCA(small_net(), clusters=2, start="updates")
    experiment = Experiment.of(method, data)
    state, _ = run_round(experiment, experiment.start(), [0], Sequential())
    assert state.server["begun"]["value"].tolist() == [0]
    state, _ = run_round(experiment, state, [0, 1, 2, 3], Sequential())
    assert state.server["begun"]["value"].tolist() == [2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clusters": "auto"}, "first updates"),
        ({"clusters": 0}, "at least 1"),
        ({"start": "x"}, "x"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        IFCA(small_net(), **options)


def test_statistics_that_stay_on_the_clients_are_refused_with_clusters_of_updates() -> None:
    net = Net.of(lambda: nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 4)))
    with pytest.raises(UserError, match="statistics"):
        IFCA(net, statistics="local", start="updates")
    IFCA(net, statistics="local")
