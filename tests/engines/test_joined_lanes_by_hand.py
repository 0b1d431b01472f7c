"""Lanes as one job: whose numbers, rows and results are whose."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedblocks.core.optimizers import SGD
from fedblocks.core.rules import Average, MovingAverage
from fedblocks.core.schedules import Exponential
from fedblocks.core.state import State
from fedblocks.core.uploads import Upload
from fedblocks.data.federation import Federation
from fedblocks.data.rows import Rows
from fedblocks.engines.job import Evaluated, Trained
from fedblocks.engines.lanes import lanes as module
from fedblocks.engines.lanes import side_by_side
from fedblocks.engines.lanes.federations import merge_federations
from fedblocks.engines.lanes.joined import (
    Ground,
    JoinedJob,
    join_jobs,
    split_evaluated,
    split_trained,
)
from fedblocks.engines.lanes.lanes import Lanes
from fedblocks.engines.round import Experiment
from fedblocks.engines.row_tables import RowTables
from fedblocks.engines.vectorised import Vectorised
from fedblocks.methods.fedavg import FedAvg
from fedblocks.methods.fedprox import FedProx
from fedblocks.testing.federations import small_federation, small_net

NET, DATA = small_net(), small_federation(tags=("kind",))  # six clients


def federation(x: list[float], y: list[int], kinds: tuple[int, int] = (0, 1)) -> Federation:
    """Two clients: the first row trains the one, all others the other; the last row is for tests of
    both.
    """
    last = len(x) - 1
    train = Rows.of([np.array([0]), np.arange(1, last)])
    test = Rows.of([np.array([last]), np.array([last])])
    tags = {"kind": np.array(kinds)}
    return Federation(
        torch.tensor(x)[:, None], torch.tensor(y), train, Rows.none(2), test, 3, tags=tags
    )


def test_rows_that_federations_share_are_held_once_and_the_others_behind() -> None:
    """Rows: 4 of the first, then 3 of the second; copies of both find their own."""
    first = federation([1.0, 2.0, 3.0, 4.0], [0, 1, 2, 0])
    second = federation([5.0, 6.0, 7.0], [0, 1, 2], kinds=(2, 3))
    copies = [replace(one, x=one.x.clone(), y=one.y.clone()) for one in (second, first)]
    merged = merge_federations([first, second, *copies])
    assert merged.x.flatten().tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    assert merged.y.tolist() == [0, 1, 2, 0, 0, 1, 2]
    train = [rows.tolist() for rows in merged.train]
    assert train == [[0], [1, 2], [4], [5], [4], [5], [0], [1, 2]]
    assert [rows.tolist() for rows in merged.test] == [[3], [3], [6], [6], [6], [6], [3], [3]]
    assert [len(rows) for rows in merged.validation] == [0] * 8
    assert merged.tags["kind"].tolist() == [0, 1, 2, 3, 2, 3, 0, 1]
    assert (merged.classes, merged.task, merged.about) == (3, first.task, first.about)


def test_rows_are_the_same_only_if_inputs_and_labels_are() -> None:
    first = federation([1.0, 2.0, 3.0], [0, 1, 2])
    other_labels = replace(first, y=torch.tensor([0, 2, 2]))  # the inputs are in the same memory
    other_inputs = replace(first, x=first.x + 1)
    longer = federation([1.0, 2.0, 3.0, 4.0], [0, 1, 2, 0])
    for other in (other_labels, other_inputs, longer):
        assert len(merge_federations([first, other]).y) == 3 + len(other.y)
    assert len(merge_federations([first, replace(first)]).y) == 3


def joined(*lanes: Any, rounds: tuple[int, int] = (0, 0), **sent: Any) -> JoinedJob:
    """Clients 1 and 4 of the first lane, client 2 of the second."""
    jobs = {}
    for lane, (method, ids) in enumerate(zip(lanes, ([1, 4], [2]), strict=True)):
        experiment = Experiment({"all": method}, DATA, seed=7 + lane)
        state = replace(experiment.start(), round=rounds[lane])
        job = experiment.training_job("all", ids, state)
        jobs[lane] = replace(job, sent=replace(job.sent, **sent))
    job = join_jobs(Ground(DATA, RowTables(), [0, 6]), jobs)
    assert isinstance(job, JoinedJob)
    return job


def test_a_joined_job_has_the_clients_of_all_lanes_with_their_seeds_and_rounds() -> None:
    job = joined(FedAvg(NET), FedAvg(NET), rounds=(3, 5))
    assert job.ids == [1, 4, 8] and job.cohort.ids.tolist() == [1, 4, 2]
    assert job.origins == [(7, 3, 1), (7, 3, 4), (8, 5, 2)]
    assert job.cohort.sizes.tolist() == [float(len(DATA.train[i])) for i in (1, 4, 2)]
    assert job.cohort.tags["kind"].tolist() == [1, 0, 0]
    assert {name: len(own) for name, own in job.sent.bytes_down.items()} == {"model": 3}
    assert all(len(value) == 3 for value in job.sent.blocks["model"].values())
    assert job.training and job.purpose == "train" and job.seed == 7


def test_numbers_in_which_lanes_differ_are_one_of_each_client() -> None:
    slow, fast = (
        FedProx(NET, lr=lr, strength=2 * lr, optimizer=SGD(momentum=lr)) for lr in (0.25, 0.5)
    )
    job = joined(slow, fast)
    rates = {place: own.tolist() for place, own in job.rates.items()}
    assert rates == {(0, 0): [0.25, 0.25, 0.5], (0, 1): [0.5, 0.5, 1.0]}
    assert {own.dtype for own in job.rates.values()} == {torch.float64}
    numbers = job.own_numbers
    assert {name: own.tolist() for name, own in numbers["options"].items()} == {
        "lr": [0.25, 0.25, 0.5],
        "strength": [0.5, 0.5, 1.0],
        "optimizer.momentum": [0.25, 0.25, 0.5],
    }
    assert numbers["optimizers"]["0/0"]["momentum"].tolist() == [0.25, 0.25, 0.5]
    assert numbers.keys() == {"options", "optimizers"}


def test_lanes_alike_have_no_numbers_of_their_own_and_others_have_rounds() -> None:
    falling = FedAvg(NET, lr=Exponential(1.0, 0.25, 2))
    same = joined(falling, falling)
    assert same.rates == {} and same.own_numbers == {"options": {}, "optimizers": {"0/0": {}}}
    later = joined(falling, falling, rounds=(0, 1))
    assert later.rates[0, 0].tolist() == [1.0, 1.0, 0.5]
    assert later.own_numbers["round"].tolist() == [0.0, 0.0, 1.0]


def test_clients_ask_the_pools_of_their_own_lane() -> None:
    """Two slots, 1 and 2 in the first lane; what is wanted has weight 1 or 0."""
    pool = {"pool": {"w": torch.tensor([1.0, 2.0])}}
    job = joined(FedAvg(NET), FedAvg(NET), on_request=pool)
    assert job.own_numbers["lane"].tolist() == [0, 0, 1]
    both = {"pool": {"w": torch.tensor([[1.0, 2.0], [3.0, 4.0]])}}
    assert job.sent.on_request["pool"]["w"].shape == (2, 2)
    job = replace(job, sent=replace(job.sent, on_request=both))
    local: Any = SimpleNamespace(tensors={"lane": torch.tensor([0, 0, 1])}, each=torch.func.vmap)
    wanted = {"pool": torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])}
    got = job.requested(wanted, local)["pool"]["w"]
    assert got.tolist() == [[1.0, 0.0], [0.0, 2.0], [3.0, 4.0]]


def test_one_lane_alone_is_its_own_job() -> None:
    job: Any = SimpleNamespace()
    assert join_jobs(Ground(DATA, RowTables(), [0]), {4: job}) is job


def test_results_are_split_by_the_clients_of_each_job() -> None:
    jobs: Any = [SimpleNamespace(ids=[5, 6]), SimpleNamespace(ids=[7])]
    three: Any = lambda start: torch.arange(start, start + 3)
    trained = Trained(
        {"model": {"w": three(0)}},
        {"model": three(10)},
        {"pool": three(20)},
        {"model": three(30)},
        {"local": three(40)},
    )
    one, two = split_trained(trained, jobs)
    assert one.blocks["model"]["w"].tolist() == [0, 1] and two.blocks["model"]["w"].tolist() == [2]
    names = ("weights", "wanted", "bytes_down", "counts")
    last = [next(iter(getattr(two, name).values())).tolist() for name in names]
    assert last == [[12], [22], [32], [42]]
    evaluated = Evaluated({"test": {"personal": three(0)}}, {"mean": three(10)})
    ends = split_evaluated(evaluated, jobs)
    assert [end.counts["test"]["personal"].tolist() for end in ends] == [[0, 1], [2]]
    assert [end.portraits["mean"].tolist() for end in ends] == [[10, 11], [12]]


def upload(ids: list[int], rule: Any) -> Upload:
    clients = len(ids)
    copies = {"w": torch.tensor(ids, dtype=torch.float64)}
    return Upload("model", torch.tensor(ids), copies, torch.ones(clients, 1), False, rule)


def test_uploads_of_lanes_are_one_with_clients_and_rules_of_their_own() -> None:
    both = side_by_side._join([upload([0, 3], Average()), upload([1], Average())], [0, 6], [1, 1])
    assert both.ids.tolist() == [0, 3, 7] and both.lanes == (2, 1) and both.rule == Average()
    assert both.copies["w"].tolist() == [0.0, 3.0, 1.0] and both.weights.shape == (3, 1)
    rules = Average(), MovingAverage(0.5)
    pair = [upload([0], rules[0]), upload([1], rules[1])]
    assert side_by_side._join(pair, [0, 6], [2, 1]).rule == side_by_side.RuleOfEach(rules, (2, 1))


def test_clients_of_a_lane_are_counted_from_the_end_of_the_lanes_before() -> None:
    result: Any = lambda clients: SimpleNamespace(
        job=SimpleNamespace(data=SimpleNamespace(clients=clients)),
        uploads={"own": upload([0, 1], Average())},
    )
    state: Any = SimpleNamespace(server={"model": {"w": torch.zeros(2)}})
    joined = side_by_side._join_uploads([result(4), result(5), result(6)], [state] * 3)
    assert joined["own"].ids.tolist() == [0, 1, 4, 5, 9, 10]


def test_states_of_lanes_are_split_by_their_slots_and_are_a_round_later() -> None:
    slots = (2, 1)
    states = [
        State(
            4 + lane,
            {"model": {"w": torch.zeros(n)}, "kept": {"w": torch.ones(1)}},
            {"model": {"first": {"w": torch.zeros(n)}}, "kept": {}},
            {},
        )
        for lane, n in enumerate(slots)
    ]
    after = replace(
        states[0],
        server={"model": {"w": torch.tensor([1.0, 2.0, 3.0])}},
        memory={"model": {"first": {"w": torch.tensor([4.0, 5.0, 6.0])}}},
    )
    one, two = side_by_side._split_lanes(after, states)
    assert (one.round, two.round) == (5, 6)
    assert [own.server["model"]["w"].tolist() for own in (one, two)] == [[1.0, 2.0], [3.0]]
    memory = [own.memory["model"]["first"]["w"].tolist() for own in (one, two)]
    assert memory == [[4.0, 5.0], [6.0]]
    assert one.server["kept"] is states[0].server["kept"]
    assert states[0].server["model"]["w"].tolist() == [0.0, 0.0]  # as it was


@pytest.mark.parametrize(("shares", "capped"), [((1.0, 1.0), False), ((1.0, 0.5), True)])
def test_weights_are_capped_if_a_lane_has_a_cap(
    shares: tuple[float, float], capped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stand-in takes all weights times the share."""
    times = lambda groups, share: {
        group: {name: replace(own, weights=own.weights * share) for name, own in uploads.items()}
        for group, uploads in groups.items()
    }
    monkeypatch.setattr(side_by_side, "cap_groups", times)
    own: Any = lambda: {"all": SimpleNamespace(uploads={"own": upload([0], Average())})}
    ends: Any = [({}, None, own(), share) for share in shares]
    groups = {"all": {"own": upload([0, 1], Average())}}
    ended = side_by_side._cap_lanes(groups, ends)
    assert (ended is groups) == (not capped)
    weights = ended["all"]["own"].weights
    assert weights.flatten().tolist() == ([1.0, 0.5] if capped else [1.0, 1.0])


def test_the_clients_of_a_lane_begin_where_those_of_the_others_end() -> None:
    lanes = Lanes([Experiment.of(FedAvg(NET), DATA.subset(range(n))) for n in (2, 3, 4)])
    assert lanes.ground.offsets == [0, 2, 5] and lanes.ground.data.clients == 9


@pytest.mark.parametrize("case", ["stacked", "apart", "sequential", "one"])
def test_a_coming_round_is_planned_as_one_stack_where_it_will_be_one(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(module, "why_not", lambda experiments: None)
    monkeypatch.setattr(module, "join_rosters", lambda rosters: "+".join(rosters))
    monkeypatch.setattr(module, "lay_out", lambda tables, own, engine: asked.append((tables, own)))

    def lane(number: int) -> Any:
        named = lambda ids, round: {f"g{i}": f"lane {number} g{i} round {round}" for i in ids}
        return SimpleNamespace(tables=f"tables {number}", rosters=named)

    lanes = Lanes([lane(n) for n in range(1 if case == "one" else 2)])
    vars(lanes)["ground"] = SimpleNamespace(tables="ground")
    vars(lanes)["apart"] = ["Own"] if case == "apart" else []
    states: Any = [SimpleNamespace(round=3), SimpleNamespace(round=5)]
    engine: Any = "sequential" if case == "sequential" else Vectorised()
    lanes._lay_out(states, [[0, 1], [0]], engine)
    own = [
        ("tables 0", ["lane 0 g0 round 4", "lane 0 g1 round 4"]),
        ("tables 1", ["lane 1 g0 round 6"]),
    ]
    stacked = ["lane 0 g0 round 4+lane 1 g0 round 6", "lane 0 g1 round 4"]
    expected = {"stacked": [("ground", stacked)], "one": own[:1]}
    assert asked == expected.get(case, own)
