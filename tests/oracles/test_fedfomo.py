"""FedFomo against its algorithm box, its choice of peers, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedblocks.core.errors import DataError, UserError
from fedblocks.data.rows import Rows
from fedblocks.engines.round import Experiment, evaluate, run_round
from fedblocks.methods.fedfomo import FedFomo, epsilon_greedy
from fedblocks.methods.local import Local

from . import definition, fedfomo
from .harness import BATCH, ENGINES, SEED, SIZES, federation, mlp_net, play
from .longer import LONGER, close, longer_task, validated
from .plain import Descent

COMMON: dict[str, Any] = {"net": mlp_net(), "lr": 0.2, "epochs": 2, "batch_size": BATCH}
each_engine = pytest.mark.parametrize("engine", ENGINES.values(), ids=list(ENGINES))


def luck(round: int, client: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    key = definition.key(definition.key(SEED, round, "server"), "peers")
    return definition.uniform(definition.fold(key, client), count)


def expected(method: FedFomo) -> fedfomo.Result:
    choice = (method.peers, method.epsilon, method.epsilon_decay)
    return fedfomo.run(longer_task(method), Descent(0.2), *choice, method.baseline == "first", luck)


@each_engine
@pytest.mark.parametrize("baseline", ["first", "last"])
def test_four_rounds_are_those_of_the_paper(baseline: str, engine: Any) -> None:
    method = FedFomo(**COMMON, peers=2, epsilon=0.5, epsilon_decay=0.1, baseline=baseline)
    _, state = play(method, engine, data=validated(), cohorts=LONGER)
    result = expected(method)
    np.testing.assert_allclose(
        state.server["affinity"]["value"].numpy(), result.affinity, rtol=0, atol=1e-9
    )
    for i in range(len(SIZES)):
        close({k: v[i] for k, v in state.server["peers"].items()}, result.stored[i], f"slot {i}")
    for i, blocks in state.private.items():
        close(blocks["model"], result.model[i], f"model of client {i}")
        if baseline == "first":
            close(blocks["first"], result.first[i], f"first model of client {i}")


def test_in_the_oracles_task_peers_help_some_clients_and_are_refused_by_others() -> None:
    result = expected(FedFomo(**COMMON, peers=2, epsilon=0.5, epsilon_decay=0.1))
    assert (result.affinity > 0).any() and (result.affinity < 0).any()
    assert len({tuple(peers) for chosen in result.chosen for peers in chosen.values()}) > 5


@each_engine
def test_with_identical_models_a_client_keeps_its_own(engine: Any) -> None:
    """In the first round all models are the initial one."""
    _, actual = play(FedFomo(**COMMON), engine, data=validated(), cohorts=LONGER[:1])
    _, alone = play(Local(**COMMON), engine, cohorts=LONGER[:1])
    for client, blocks in alone.private.items():
        close(actual.private[client]["model"], {k: v.numpy() for k, v in blocks["model"].items()})
    assert not actual.server["affinity"]["value"].any()


def test_a_model_that_helps_nobody_is_not_mixed_in() -> None:
    """All peers replaced by one with a loss of about 1000: gains are negative, and
    clients keep their own.
    """
    method = FedFomo(**COMMON, baseline="last")
    experiment = Experiment.of(method, validated(), SEED)
    state = experiment.start()
    bad = {k: torch.full_like(v, 10.0) for k, v in state.server["peers"].items()}
    bad["4.bias"] = torch.tensor([1000.0, 0, 0, -1000], dtype=torch.double).expand(6, 4).clone()
    after, _ = run_round(
        experiment,
        replace(state, server={**state.server, "peers": bad}),
        [0, 2],
        ENGINES["sequential"],
    )
    _, alone = play(Local(**COMMON), ENGINES["sequential"], cohorts=((0, 2),))
    for client, blocks in alone.private.items():
        close(after.private[client]["model"], {k: v.numpy() for k, v in blocks["model"].items()})
    assert (after.server["affinity"]["value"][0][1:] < 0).all()


def test_peers_are_others_each_once_and_the_best_first() -> None:
    affinity, own = torch.tensor([9.0, -1, 3, 0, 2, 0]).double().expand(2, 6), torch.tensor([0, 2])
    assert epsilon_greedy(affinity, own, count=2, epsilon=0.0, seed=1).tolist() == [[2, 4], [0, 4]]
    for seed in range(50):
        actual = epsilon_greedy(affinity, own, count=5, epsilon=0.5, seed=seed)
        assert actual.sort(1).values.tolist() == [[1, 2, 3, 4, 5], [0, 1, 3, 4, 5]]


def test_peers_do_not_depend_on_who_else_takes_part() -> None:
    affinity, everybody = torch.zeros(6, 6, dtype=torch.double), torch.arange(6)
    together = epsilon_greedy(affinity, everybody, count=3, epsilon=0.5, seed=3)
    assert torch.equal(
        together[2:4], epsilon_greedy(affinity[2:4], everybody[2:4], count=3, epsilon=0.5, seed=3)
    )
    assert len({tuple(row) for row in together.tolist()}) > 1


def test_chance_and_ties_spread_choices_over_everybody() -> None:
    own = torch.tensor([5])
    for epsilon, affinity in ((1.0, torch.arange(6.0)), (0.0, torch.zeros(6))):
        actual = [
            epsilon_greedy(affinity.double()[None], own, 1, epsilon, seed) for seed in range(200)
        ]
        assert {n.item() for n in actual} == {0, 1, 2, 3, 4}


def test_only_peers_travel_down() -> None:
    experiment = Experiment.of(FedFomo(**COMMON, peers=3), validated(), SEED)
    _, report = run_round(experiment, experiment.start(), [0, 1], ENGINES["vectorised"])
    one = 8 * experiment.methods["all"].net.size()
    assert report.bytes_down == {"peers": {0: 3 * one, 1: 3 * one}, "gains": {0: 0, 1: 0}}
    # a gain for each peer, and the weight of the upload
    assert report.bytes_up["gains"][0] == 3 * 8 + 8


def test_more_peers_than_clients_are_all_the_others() -> None:
    _, state = play(
        FedFomo(**COMMON, peers=50), ENGINES["vectorised"], data=validated(), cohorts=LONGER
    )
    affinity = state.server["affinity"]["value"]
    assert state.server["gains"]["value"].shape == (6, 50)
    assert (affinity[1] != 0).sum() > 2 and not affinity.diag().any()


def test_a_client_that_is_alone_trains_alone() -> None:
    alone = validated().subset([0])
    _, actual = play(FedFomo(**COMMON), ENGINES["sequential"], data=alone, cohorts=((0,), (0,)))
    _, local = play(Local(**COMMON), ENGINES["sequential"], data=alone, cohorts=((0,), (0,)))
    close(actual.private[0]["model"], {k: v.numpy() for k, v in local.private[0]["model"].items()})


def test_the_test_is_of_the_model_after_training() -> None:
    experiment, state = play(
        FedFomo(**COMMON), ENGINES["vectorised"], data=validated(), cohorts=LONGER
    )
    plain = Experiment.of(Local(**COMMON), validated(), SEED)
    ours, theirs = (
        evaluate(s, state, range(4), ENGINES["vectorised"])["personal"] for s in (experiment, plain)
    )
    assert ours == theirs


def test_without_a_validation_part_it_is_refused() -> None:
    with pytest.raises(DataError, match='"client-0" and 4 other clients have none'):
        Experiment.of(FedFomo(**COMMON), federation(), SEED)


def test_one_client_without_validation_rows_is_named_and_one_without_any_rows_is_not() -> None:
    data = validated()
    lacking = replace(
        data,
        validation=Rows.of([rows if i not in (3, 4) else [] for i, rows in enumerate(data.test)]),
    )
    with pytest.raises(DataError, match='"client-3" has none'):
        Experiment.of(FedFomo(**COMMON), lacking, SEED)


@pytest.mark.parametrize("options", [{"peers": 0}, {"epsilon": 1.5}, {"baseline": "best"}])
def test_values_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(options))):
        FedFomo(mlp_net(), **options)
