"""Lanes: several runs in one stack end as they would have ended one after the other."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedblocks.core import aggregate
from fedblocks.core.errors import UserError
from fedblocks.core.reduction import reduce_slots
from fedblocks.core.state import State
from fedblocks.data.federation import Federation
from fedblocks.engines import speculation
from fedblocks.engines.lanes.federations import merge_federations
from fedblocks.engines.lanes.lanes import Lanes
from fedblocks.engines.lanes.likeness import why_not
from fedblocks.engines.round import Experiment, evaluate_parts, run_round
from fedblocks.engines.vectorised import Vectorised
from fedblocks.methods import METHODS
from fedblocks.testing import EXAMPLES
from fedblocks.testing.starts import STARTS

RATES = (1.0, 0.5)  # times the learning rate of the example


@pytest.fixture(autouse=True)
def speculating(monkeypatch) -> None:
    """As on a GPU: the end of a round is queued for all lanes at once."""
    monkeypatch.setattr(speculation, "pays_on", lambda device: True)


def settings(name: str, rates: tuple[float, ...] = RATES) -> list[Experiment]:
    """Two seeds, each with every learning rate; the second seed has its clients in
    another order.
    """
    example = EXAMPLES[name]()
    data = example.federation
    turned = data.subset(list(reversed(range(data.clients))))
    actual = []
    for seed, own in ((0, data), (1, turned)):
        for times in rates:
            experiment = example.experiment(own)
            methods = {
                group: replace(m, lr=m.lr * times) for group, m in experiment.methods.items()
            }
            groups = experiment.groups if own is data else list(reversed(experiment.groups))
            actual.append(Experiment(methods, own, seed, groups))
    return actual


@pytest.mark.parametrize("name", EXAMPLES)
def test_lanes_end_as_separate_runs(name):
    lanes = settings(name)
    if why_not(lanes):
        # a method whose hooks use the learning rate can still have lanes of seeds
        lanes = settings(name, (1.0,))
    if why_not(lanes):
        assert "middle of a round" in why_not(lanes)
        return
    together, engine = Lanes(lanes), Vectorised()
    states = apart = [experiment.start() for experiment in lanes]
    for round in range(2):
        cohorts = [
            list(range(lane % 2 if round else 0, s.data.clients)) for lane, s in enumerate(lanes)
        ]
        ends = together.run_round(states, cohorts, engine)
        alone = [run_round(*given, engine) for given in zip(lanes, apart, cohorts)]
        states, apart = [end[0] for end in ends], [end[0] for end in alone]
        for (_, one), (_, other) in zip(ends, alone):
            assert (one.bytes_down, one.bytes_up, one.refusals) == (
                other.bytes_down,
                other.bytes_up,
                other.refusals,
            )
    for one, other in zip(states, apart):
        assert_alike(one.server, other.server)
        assert one.private.keys() == other.private.keys()
        for client in one.private:
            assert_alike(one.private[client], other.private[client])
    everybody = [range(s.data.clients) for s in lanes]
    scores = together.evaluate_parts(states, everybody, engine, ["test"])
    for actual, experiment, state in zip(scores, lanes, states):
        expected = evaluate_parts(
            experiment, state, range(experiment.data.clients), engine, ["test"]
        )
        assert {
            v: {c: n[:2] for c, n in by.items()} for v, by in actual.scores["test"].items()
        } == {v: {c: n[:2] for c, n in by.items()} for v, by in expected.scores["test"].items()}


def test_lanes_that_found_other_numbers_of_clusters_end_as_separate_runs():
    """The second lane's clients are all of one kind."""
    example = STARTS["ifca_updates"]()
    same = example.federation.subset([0, 2, 4, 6])
    lanes = [example.experiment(), example.experiment(same), example.experiment()]
    together, engine = Lanes(lanes), Vectorised()
    states = apart = [experiment.start() for experiment in lanes]
    cohorts = [list(range(experiment.data.clients)) for experiment in lanes]
    for _ in range(2):
        states = [state for state, _ in together.run_round(states, cohorts, engine)]
        apart = [run_round(*own, engine)[0] for own in zip(lanes, apart, cohorts)]
    assert [int(state.server["begun"]["value"]) for state in states] == [2, 1, 2]
    for one, other in zip(states, apart):
        assert_alike(one.server, other.server)
    scores = together.evaluate_parts(states, cohorts, engine, ["test"])
    for actual, *own in zip(scores, lanes, apart, cohorts):
        expected = evaluate_parts(*own, engine, ["test"]).scores["test"]["personal"]
        assert {c: n[0] for c, n in actual.scores["test"]["personal"].items()} == {
            c: n[0] for c, n in expected.items()
        }


def assert_alike(one, other):
    for block, params in other.items():
        for key, value in params.items():
            assert torch.allclose(one[block][key], value, atol=1e-5, rtol=1e-4), (block, key)


def test_a_lane_whose_numbers_explode_is_refused_and_the_others_go_on():
    lanes = settings("fedavg", (1.0, 1e300))
    together, engine = Lanes(lanes), Vectorised()
    starts = [experiment.start() for experiment in lanes]
    cohorts = [range(experiment.data.clients) for experiment in lanes]
    ends = together.run_round(starts, cohorts, engine)
    for (state, report), experiment, start in zip(ends, lanes, starts):
        wild = experiment.methods["all"].lr > 1e200
        assert [r.client for r in report.refusals] == (
            list(range(experiment.data.clients)) if wild else []
        )
        expected = (
            start
            if wild
            else run_round(experiment, start, range(experiment.data.clients), engine)[0]
        )
        assert_alike(state.server, expected.server)


def test_lanes_that_have_found_other_numbers_of_clusters_end_as_if_they_were_alone():
    # clients that hardly move are not torn apart, others are split after the first round
    lanes = settings("clustered", (1.0, 1e-6))
    cohorts = [list(range(s.data.clients)) for s in lanes]
    ends = Lanes(lanes).run_round([s.start() for s in lanes], cohorts, Vectorised())
    counts = [int(state.server["membership"]["value"].max()) + 1 for state, _ in ends]
    assert len(set(counts)) > 1, counts
    assert_every_lane_is_alone(lanes, cohorts)


@pytest.mark.parametrize(("name", "times"), [("fedavg", 1), ("modfl", 2), ("fedamp", 1)])
def test_the_servers_share_of_a_round_is_done_once_for_all_lanes(name, times, monkeypatch):
    calls = []
    monkeypatch.setattr(
        aggregate, "reduce_slots", lambda *given: calls.append(1) or reduce_slots(*given)
    )
    lanes = settings(name)
    Lanes(lanes).run_round(
        [s.start() for s in lanes], [range(s.data.clients) for s in lanes], Vectorised()
    )
    assert len(lanes) == 4 and len(calls) == times  # blocks that are uploaded


def test_federations_with_the_same_rows_hold_them_once():
    data = EXAMPLES["fedavg"]().federation
    both = merge_federations([data, data.subset([1, 0])])
    assert both.x.data_ptr() == data.x.data_ptr()
    assert [both.train[i].tolist() for i in (data.clients, 0)] == [
        data.train[1].tolist(),
        data.train[0].tolist(),
    ]


def test_federations_with_other_rows_keep_their_own():
    data = EXAMPLES["fedavg"]().federation
    other = Federation(
        data.x + 1, data.y, data.train, data.validation, data.test, data.classes, tags=data.tags
    )
    both = merge_federations([data, other])
    assert torch.equal(both.x[both.train[data.clients]], other.x[other.train[0]])


def test_runs_that_differ_in_more_than_seed_and_learning_rate_are_refused():
    example = EXAMPLES["moon"]()  # its strength stands in its loss
    one = example.experiment(example.federation)
    methods = {group: replace(m, strength=m.strength + 1) for group, m in one.methods.items()}
    with pytest.raises(UserError, match="strength differs, and only seeds and lr may"):
        Lanes([one, Experiment(methods, one.data, 0, one.groups)])


def wild(name: str, times: float = 1e300) -> list[Experiment]:
    """Three lanes of one example, the second of which has a learning rate that no model
    survives.
    """
    example = EXAMPLES[name]()
    data = example.federation
    actual = []
    for seed, factor in ((0, 1.0), (0, times), (1, 0.5)):
        experiment = example.experiment(data)
        same = any(m.lr_used_in_hooks for m in experiment.methods.values())
        factor = 1.0 if same and factor == 0.5 else factor
        methods = {group: replace(m, lr=m.lr * factor) for group, m in experiment.methods.items()}
        actual.append(Experiment(methods, data, seed, experiment.groups))
    return actual


def assert_every_lane_is_alone(
    lanes: list[Experiment], cohorts: list[list[int]], rounds: int = 3
) -> None:
    """Every lane ends with the numbers of its run alone: within 1e-6, and NaN where
    that has NaN.
    """
    together, engine = Lanes(lanes), Vectorised()
    states = apart = [experiment.start() for experiment in lanes]
    for _ in range(rounds):
        ends = together.run_round(states, cohorts, engine, "test")
        alone = [run_round(*given, engine, "test") for given in zip(lanes, apart, cohorts)]
        states, apart = [end[0] for end in ends], [end[0] for end in alone]
        assert [one.refusals for _, one in ends] == [other.refusals for _, other in alone]
    scores = together.evaluate_parts(
        states, [range(s.data.clients) for s in lanes], engine, ["test"]
    )
    for one, other, actual, experiment in zip(states, apart, scores, lanes):
        assert_close(one, other)
        expected = evaluate_parts(
            experiment, other, range(experiment.data.clients), engine, ["test"]
        )
        assert {v: {c: n[0] for c, n in by.items()} for v, by in actual.scores["test"].items()} == {
            v: {c: n[0] for c, n in by.items()} for v, by in expected.scores["test"].items()
        }


def assert_close(one: State, other: State) -> None:
    trees = [(one.server, other.server), *((one.memory[n], other.memory[n]) for n in other.memory)]
    assert one.private.keys() == other.private.keys()
    for mine, expected in (*trees, *((one.private[c], other.private[c]) for c in other.private)):
        for block, params in expected.items():
            for key, value in params.items():
                torch.testing.assert_close(
                    mine[block][key], value, atol=1e-6, rtol=1e-5, equal_nan=True
                )


@pytest.mark.parametrize(
    "name", ["fedavg", "pfedmb", "scaffold", "fedper", "ifca", "fedadam", "modfl", "fedamp"]
)
def test_lanes_beside_one_that_explodes_end_as_if_they_were_alone(name: str) -> None:
    lanes = wild(name)
    if why_not(lanes):  # its hooks use the learning rate: the poison comes with the data instead
        own = (lanes[0].data, spoiled(lanes[0]), lanes[0].data)
        lanes = [replace(lanes[0], seed=seed, data=data) for seed, data in enumerate(own)]
    assert_every_lane_is_alone(lanes, [list(range(s.data.clients)) for s in lanes])


def spoiled(experiment: Experiment) -> Federation:
    """The same clients, but the first one's inputs are infinite."""
    data = experiment.data
    x = data.x.clone()
    x[data.train[0]] = torch.inf
    return Federation(
        x, data.y, data.train, data.validation, data.test, data.classes, tags=data.tags
    )


@pytest.mark.parametrize("name", ["fedavg", "pfedmb", "scaffold", "fedper", "ifca"])
def test_a_client_that_is_refused_in_one_lane_takes_part_in_the_others(name: str) -> None:
    one = settings(name, (1.0,))[0]
    lanes = [one, replace(one, data=spoiled(one)), replace(one, seed=1)]
    assert_every_lane_is_alone(lanes, [list(range(s.data.clients)) for s in lanes])
    _, report = Lanes(lanes).run_round([s.start() for s in lanes], [[0, 1, 2]] * 3, Vectorised())[1]
    assert [refusal.client for refusal in report.refusals] == [0]


@pytest.mark.parametrize("name", ["fedavg", "pfedmb", "scaffold", "fedper", "ifca"])
def test_lanes_with_cohorts_of_other_sizes_or_nobody_end_as_if_they_were_alone(name: str) -> None:
    lanes = settings(name, (1.0,)) * 2
    assert_every_lane_is_alone(lanes, [[0, 1, 2], [1], [0, 2], [1, 2]])
    assert_every_lane_is_alone(lanes, [[0, 1, 2], [], [0, 2], [1]])


@pytest.mark.parametrize("name", ["fedavg", "modfl"])
def test_the_weights_of_a_lane_are_capped_as_if_it_were_alone(name: str) -> None:
    lanes = [
        replace(one, share=share)
        for one, share in zip(settings(name, (1.0,)) * 2, (0.2, 1.0, 0.4, 0.2))
    ]
    assert_every_lane_is_alone(lanes, [list(range(s.data.clients)) for s in lanes])


@pytest.mark.parametrize("name", ["fedamp", "scaffold"])
def test_lanes_with_clients_that_never_train_end_as_if_they_were_alone(name: str) -> None:
    lanes = [
        replace(one, unseen=unseen)
        for one, unseen in zip(settings(name, (1.0,)) * 2, ([2], [0], [], [1, 2]))
    ]
    cohorts = [
        [client for client in range(s.data.clients) if client not in s.unseen] for s in lanes
    ]
    assert_every_lane_is_alone(lanes, cohorts)


FREE = {
    name: kind.in_steps_only
    for name, kind in METHODS.items()
    if kind.in_steps_only and name in EXAMPLES
}


def test_methods_of_published_grids_let_lanes_differ_in_their_values() -> None:
    wanted = {
        "fedprox": {"strength"},
        "pfedme": {"inner_lr", "strength"},
        "fedamp": {"sigma"},
        "pfedmb": {"alpha_lr"},
    }
    assert all(options <= set(FREE[name]) for name, options in wanted.items())


@pytest.mark.parametrize(
    ("name", "option"), [(name, option) for name, options in FREE.items() for option in options]
)
def test_lanes_that_differ_in_an_option_of_steps_or_of_the_server_end_as_if_they_were_alone(
    name: str, option: str
):
    example = EXAMPLES[name]()
    one = example.experiment(example.federation)
    lanes = []
    for times in (1.0, 0.5, 3.0):
        usual = {group: getattr(m, option) for group, m in one.methods.items()}
        own = {
            group: usual[group] if usual[group] is not None else m.lr
            for group, m in one.methods.items()
        }
        methods = {
            group: replace(m, **{option: own[group] * times}) for group, m in one.methods.items()
        }
        lanes.append(Experiment(methods, one.data, 0, one.groups))
    assert why_not(lanes) is None
    assert_every_lane_is_alone(lanes, [list(range(s.data.clients)) for s in lanes])
    engine, everybody = Vectorised(), range(one.data.clients)
    ends = [run_round(s, s.start(), everybody, engine)[0] for s in lanes]
    ends = [run_round(s, state, everybody, engine)[0] for s, state in zip(lanes, ends)]
    together = Lanes(lanes).evaluate_parts(ends, [everybody] * 3, engine, ["test"], joining=True)
    for actual, experiment, state in zip(together, lanes, ends):
        expected = evaluate_parts(experiment, state, everybody, engine, ["test"], joining=True)
        for view, by_client in expected.scores["test"].items():
            for client, numbers in by_client.items():
                assert actual.scores["test"][view][client] == pytest.approx(numbers, rel=1e-5)
