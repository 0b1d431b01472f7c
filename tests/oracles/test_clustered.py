"""Clustered FL against its algorithm box; splits keep a partition of the clients."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedblocks.core.errors import UserError
from fedblocks.core.net import Net
from fedblocks.core.state import State
from fedblocks.engines.round import evaluate, run_round
from fedblocks.engines.vectorised import Vectorised
from fedblocks.methods._common.clustering import complete_linkage
from fedblocks.methods.clustered import Clustered
from fedblocks.methods.fedavg import FedAvg

from . import clustered
from .harness import (
    BATCH,
    COHORTS,
    ENGINES,
    SEED,
    SIZES,
    agrees,
    courses_of,
    draw,
    federation,
    mlp_net,
    play,
    task_of,
)
from .plain import Batches, Descent

COMMON: dict[str, Any] = {"net": mlp_net(), "lr": 0.2, "epochs": 2, "batch_size": BATCH}
# every cluster splits when it may
EAGER: dict[str, Any] = {"epsilon1": 1e3, "epsilon2": 0.0, "first_round": 0}
FULL = ((0, 1, 2, 3, 4, 5),) * 3
each_engine = pytest.mark.parametrize("engine", ENGINES.values(), ids=list(ENGINES))


def orders(method: Clustered, round: int, client: int) -> list[Batches]:
    courses = courses_of(method.phases())
    return draw(method, courses, SIZES[client], (SEED, round, client, "train"))


def membership(state: State) -> list[int]:
    return state.server["membership"]["value"].squeeze(1).long().tolist()


@each_engine
@pytest.mark.parametrize("weigh_by", ["examples", "clients"])
def test_two_rounds_are_those_of_the_paper(weigh_by: str, engine: Any) -> None:
    """The first round splits four clients in two pairs; client 4 is empty, client 5
    never there and chooses by loss.
    """
    method = Clustered(**COMMON, **EAGER, max_clusters=4, min_size=1, weigh_by=weigh_by)
    expected, groups = clustered.run(
        task_of(method),
        Descent(0.2),
        limit=4,
        epsilon1=1e3,
        epsilon2=0.0,
        first_round=0,
        min_size=1,
        by_examples=weigh_by == "examples",
    )
    assert sorted(map(sorted, groups)) == [[0, 1], [2, 3]]
    agrees(method, expected, engine)


@each_engine
@pytest.mark.parametrize(
    ("epsilon1", "epsilon2", "clusters"), [(0.4, 1.0, 1), (0.4, 0.5, 2), (0.55, 0.5, 3)]
)
def test_thresholds_mean_what_they_mean_in_the_paper(
    epsilon1: float, epsilon2: float, clusters: int, engine: Any
) -> None:
    """All in round 1: the mean change is 0.285 long, the longest 0.628; a half of three
    in round 2: 0.501 and 0.685.
    """
    limits = {"epsilon1": epsilon1, "epsilon2": epsilon2, "first_round": 1, "min_size": 2}
    method = Clustered(**COMMON, **limits, max_clusters=4)
    task = replace(
        task_of(method),
        rounds=[{i: orders(method, t, i) for i in who} for t, who in enumerate(FULL)],
    )
    expected, groups = clustered.run(task, Descent(0.2), limit=4, **limits)
    assert len(groups) == clusters
    _, state = play(method, engine, cohorts=FULL)
    assert membership(state) == [_home(groups, i) for i in range(len(SIZES))]
    for slot, params in enumerate(expected.server["clusters"]):
        for key, value in params.items():
            np.testing.assert_allclose(
                state.server["clusters"][key][slot].numpy(), value, rtol=0, atol=1e-10
            )


def _home(groups: list[set[int]], client: int) -> int:
    return next((c for c, group in enumerate(groups) if client in group), -1)


@each_engine
def test_a_second_split_keeps_a_partition_of_the_clients(engine: Any) -> None:
    """Groups only ever split: whoever is together was together before, and nobody is
    lost or counted twice.
    """
    experiment, state = play(
        Clustered(**COMMON, **EAGER, max_clusters=6, min_size=1), engine, cohorts=()
    )
    history = []
    for cohort in FULL:
        state, _ = run_round(experiment, state, cohort, engine)
        history.append(membership(state))
    for homes in history:
        # client 4 has no data
        assert all(home >= 0 for i, home in enumerate(homes) if SIZES[i]) and homes[4] == -1
    counts = [len({home for home in homes if home >= 0}) for homes in history]
    assert counts == [2, 4, 5]
    for before, after in pairwise(history):
        parents = {(a, b) for a, b in zip(after, before)}
        assert len(parents) == len({a for a, _ in parents})  # each cluster comes out of one


@each_engine
def test_clusters_of_the_first_updates_are_those_of_a_round_of_fedavg(engine: Any) -> None:
    """Clients with an odd number call the classes otherwise: the server finds two
    clusters; client 5 is absent.
    """
    sizes = (164, 158, 160, 162, 156, 161)
    method = Clustered(**COMMON, start="updates", max_clusters=4)
    task = task_of(method, sizes=sizes)
    expected = clustered.begin(task, Descent(0.2), 2, task.rounds[0])
    assert expected.members == [{0, 2, 4}, {1, 3}]
    _, state = play(method, engine, data=federation(sizes=sizes), cohorts=COHORTS[:1])
    assert membership(state) == [0, 1, 0, 1, 0, -1]
    for slot, params in enumerate(expected.models):
        for key, value in params.items():
            np.testing.assert_allclose(
                state.server["clusters"][key][slot].numpy(), value, rtol=0, atol=1e-10
            )


def test_clusters_of_the_first_updates_split_like_others_and_are_not_fedavg() -> None:
    sizes = (164, 158, 160, 162, 156, 161)
    options = {**EAGER, "start": "updates", "max_clusters": 4, "min_size": 1}
    _, state = play(
        Clustered(**COMMON, **options),
        ENGINES["sequential"],
        data=federation(sizes=sizes),
        cohorts=FULL[:2],
    )
    homes = membership(state)
    assert len(set(homes)) == 4 and not {homes[0], homes[2], homes[4]} & {homes[1], homes[3]}
    assert not Clustered(**COMMON, start="updates", never_split=True).degenerate()
    assert Clustered(**COMMON, start="updates", max_clusters=1).degenerate()


def test_the_hidden_groups_are_found() -> None:
    """Clients with an odd number call the classes otherwise; once the common model
    stands still, they part.
    """
    data = federation(sizes=(40, 40, 40, 40, 40, 40))
    method = Clustered(
        **{**COMMON, "batch_size": 40}, epsilon1=1e3, epsilon2=0.0, first_round=12, max_clusters=2
    )
    _, state = play(method, Vectorised(), data=data, cohorts=FULL[:1] * 13)
    homes = membership(state)
    assert homes[0] == homes[2] == homes[4] != homes[1] == homes[3] == homes[5]


@each_engine
@pytest.mark.parametrize(
    "never", [{"never_split": True}, {"max_clusters": 1}, {"epsilon1": 0.0}], ids=str
)
def test_clusters_that_cannot_split_are_fedavg(never: dict[str, Any], engine: Any) -> None:
    method = Clustered(**COMMON, **{**EAGER, "min_size": 1, **never})
    assert method.degenerate() and not Clustered(**COMMON, **EAGER).degenerate()
    _, actual = play(method, engine)
    _, expected = play(FedAvg(**COMMON), engine)
    for key, value in expected.server["model"].items():
        torch.testing.assert_close(actual.server["clusters"][key][0], value[0], rtol=0, atol=1e-12)
    assert membership(actual) == [0, 0, 0, 0, -1, -1]


def test_no_cluster_splits_before_its_time_or_below_its_size() -> None:
    late, small = {**EAGER, "first_round": 2}, {**EAGER, "min_size": 5}
    for options in (late, small):
        _, state = play(Clustered(**COMMON, **options), ENGINES["sequential"], cohorts=FULL[:2])
        assert set(membership(state)) == {0, -1}


def test_members_that_are_absent_at_a_split_choose_again_by_their_training_loss() -> None:
    method, engine = Clustered(**COMMON, **EAGER, min_size=1, max_clusters=2), ENGINES["vectorised"]
    experiment, state = play(replace(method, first_round=1), engine, cohorts=((0, 1, 2, 3), (0, 1)))
    assert membership(state) == [0, 1, -1, -1, -1, -1]
    back, report = run_round(experiment, state, [0, 2, 3], engine)
    losses = {i: _losses(experiment, state, i) for i in (2, 3)}
    assert [membership(back)[i] for i in (2, 3)] == [int(np.argmin(losses[i])) for i in (2, 3)]
    assert membership(back)[:2] == [0, 1]
    one = experiment.methods["all"].net.size() * 8
    # a round in which some must choose
    assert report.bytes_down["clusters"] == {0: 2 * one, 2: 2 * one, 3: 2 * one}


def _losses(experiment: Any, state: State, client: int) -> list[float]:
    rows, net = experiment.data.train[client], experiment.methods["all"].net
    x, y = experiment.data.x[rows], experiment.data.y[rows]
    models = ({k: v[slot] for k, v in state.server["clusters"].items()} for slot in range(2))
    return [float(nn.functional.cross_entropy(net(model, x), y)) for model in models]


@each_engine
def test_a_new_client_takes_the_cluster_with_the_lowest_training_loss(engine: Any) -> None:
    method = Clustered(**COMMON, **EAGER, max_clusters=2)
    experiment, state = play(method, engine, cohorts=((0, 1, 2, 3),) * 3)
    best = int(np.argmin(_losses(experiment, state, 5)))
    x, y = (values[experiment.data.test[5]] for values in (experiment.data.x, experiment.data.y))
    logits = method.net({k: v[best] for k, v in state.server["clusters"].items()}, x)
    expected = nn.functional.cross_entropy(logits, y, reduction="sum")
    actual = evaluate(experiment, state, [5], engine, joining=True)["personal"][5]
    assert actual[2] == pytest.approx(float(expected), abs=1e-10)
    assert membership(state)[5] == -1  # an evaluation places nobody


def test_clients_with_a_cluster_are_sent_one_model_and_send_one() -> None:
    method = Clustered(**COMMON, **EAGER, max_clusters=4)
    experiment, state = play(method, ENGINES["sequential"], cohorts=((0, 1, 2, 3),))
    _, report = run_round(experiment, state, [0, 1, 2, 3], ENGINES["sequential"])
    one = method.net.size() * 8
    assert set(report.bytes_down["clusters"].values()) == {one}
    # a model and its weights
    assert all(0 < sent - one < 100 for sent in report.bytes_up["clusters"].values())


def test_a_round_of_empty_clients_changes_nothing() -> None:
    method = Clustered(**COMMON, **EAGER)
    experiment, state = play(method, ENGINES["sequential"], cohorts=COHORTS[:1])
    after, _ = run_round(experiment, state, [4], ENGINES["sequential"])
    for block, slots in state.server.items():
        assert all(torch.equal(after.server[block][key], value) for key, value in slots.items())


def test_complete_linkage_judges_groups_by_their_least_similar_members() -> None:
    """0-1 and 2-3 are near; 4 is nearest to 1 but far from 0, so that it goes to the
    group of 2 and 3.
    """
    similarity = np.array(
        [
            [1.0, 0.9, 0.0, 0.0, -0.9],
            [0.9, 1.0, 0.0, 0.0, 0.7],
            [0.0, 0.0, 1.0, 0.8, 0.1],
            [0.0, 0.0, 0.8, 1.0, 0.1],
            [-0.9, 0.7, 0.1, 0.1, 1.0],
        ]
    )
    assert complete_linkage(similarity, 2).tolist() == [0, 0, 1, 1, 1]
    assert complete_linkage(np.eye(2), 2).tolist() == [0, 1]


def test_complete_linkage_is_that_of_scipy() -> None:
    hierarchy = pytest.importorskip(
        "scipy.cluster.hierarchy", reason="needs scipy: pip install 'fedblocks[analysis]'"
    )
    draw = np.random.Generator(np.random.PCG64(0))
    for size in (3, 7, 20):
        rows = draw.standard_normal((size, 6))
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        similarity = rows @ rows.T
        tree = hierarchy.linkage(1 - similarity[np.triu_indices(size, 1)], "complete")
        theirs = hierarchy.fcluster(tree, 2, "maxclust")
        assert (
            complete_linkage(similarity, 2).tolist() == (theirs != theirs[0]).astype(int).tolist()
        )


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"max_clusters": 0}, "max_clusters"),
        ({"min_size": 0}, "min_size"),
        ({"weigh_by": "age"}, "weigh_by"),
    ],
)
def test_values_out_of_range_are_refused(options: dict[str, Any], word: str) -> None:
    with pytest.raises(UserError, match=word):
        Clustered(mlp_net(), **options)


def test_statistics_that_stay_on_the_clients_are_refused() -> None:
    net = Net.of(lambda: nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 4)))
    with pytest.raises(UserError, match="statistics"):
        Clustered(net, statistics="local")
    Clustered(mlp_net(), statistics="local")
