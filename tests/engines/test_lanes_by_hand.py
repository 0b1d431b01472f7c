"""Rounds and evaluations of lanes, with stand-ins for jobs and engines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedblocks.core.admission import Refusal
from fedblocks.engines import speculation
from fedblocks.engines.close_round import Report
from fedblocks.engines.job import Evaluated
from fedblocks.engines.lanes import lanes as module
from fedblocks.engines.lanes import likeness, numbers
from fedblocks.engines.lanes.lanes import Lanes
from fedblocks.engines.round import Experiment
from fedblocks.engines.vectorised import Vectorised
from fedblocks.methods.fedavg import FedAvg
from fedblocks.methods.fedprox import FedProx
from fedblocks.testing.federations import small_federation, small_net

NET, DATA = small_net(), small_federation()
CPU = torch.device("cpu")
PLANNED: list[Any] = []  # what the next rounds were laid out for
ABSENT = Refusal(8, "failed", "odd")
REFUSED = Refusal(9, "odd", "NaN")


def experiment(share: float) -> Any:
    return SimpleNamespace(
        methods={"a": "A", "b": "B"}, data=SimpleNamespace(device=CPU), share=share
    )


@pytest.fixture
def lanes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lanes]:
    """Two lanes of two groups; the last client of the second lane fails."""
    monkeypatch.setattr(module, "why_not", lambda experiments: None)
    PLANNED.clear()

    def carry_out(self: Any, jobs_for: Any, clients: Any, work: Any, absent: Any, stacks: bool):  # type: ignore[no-untyped-def]
        jobs = jobs_for(clients)
        yield jobs, (work(jobs), stacks)
        if ABSENT not in absent[1]:
            absent[1].append(ABSENT)

    def jobs(self: Any, group: str, states: Any, clients: Any, *more: Any) -> dict[int, Any]:
        return {
            lane: SimpleNamespace(ids=[*ids], about=(group, states[lane], *more))
            for lane, ids in enumerate(clients)
        }

    monkeypatch.setattr(Lanes, "_carry_out", carry_out)
    monkeypatch.setattr(Lanes, "_training_jobs", jobs)
    monkeypatch.setattr(Lanes, "_evaluation_jobs", jobs)
    monkeypatch.setattr(Lanes, "_lay_out", lambda self, *args: PLANNED.append(args))
    split = lambda end, jobs: [(end, job.ids) for job in jobs]
    monkeypatch.setattr(module, "split_trained", split)
    monkeypatch.setattr(module, "spoil", lambda own, rubbish: (own, rubbish))
    results = SimpleNamespace(of=lambda job, own: (job.about, *own))
    monkeypatch.setattr(module, "ClientResults", results)
    monkeypatch.setattr(
        module, "fetch_bytes", lambda results: [("fetched", own) for own in results]
    )
    report = Report([], {}, {}, [REFUSED], {})
    monkeypatch.setattr(module, "close_round", lambda *end: (("closed", end), report))
    yield Lanes([experiment(1.0), experiment(0.5)])


def test_a_round_of_lanes_ends_with_what_each_learned_and_who_was_absent(lanes: Lanes) -> None:
    engine: Any = SimpleNamespace(train=lambda job, score: (sorted(job), score))
    states: Any = ["state 0", "state 1"]
    ends: Any = lanes.run_round(
        states, [[4, 5], [6]], engine, "test", [[1], [2]], corrupt=[{5}, {4}]
    )
    work = (([0, 1], "test"), False)
    own = [
        {group: ((group, states[lane]), (work, ids), rubbish) for group in ("a", "b")}
        for lane, ids, rubbish in ((0, [4, 5], [False, True]), (1, [6], [False]))
    ]
    methods = {"a": "A", "b": "B"}
    assert [state for state, _ in ends] == [
        ("closed", (methods, "state 0", ("fetched", own[0]), 1.0)),
        ("closed", (methods, "state 1", ("fetched", own[1]), 0.5)),
    ]
    assert [report.refusals for _, report in ends] == [[REFUSED], [REFUSED, ABSENT]]
    assert [(states, [[1], [2]], engine)] == PLANNED


def test_nobody_sends_rubbish_unless_told_and_stacks_are_of_one_engine(lanes: Lanes) -> None:
    class Stacking(Vectorised):
        def train(self, job: Any, score: Any = None) -> Any:
            return score

    ends: Any = lanes.run_round(["s", "t"], [[4], [6]], Stacking())  # type: ignore[list-item]
    fetched = ends[0][0][1][2][1]
    assert fetched["a"][1:] == (((None, True), [4]), [])  # no score, in a stack, and no rubbish


def test_a_round_that_was_begun_early_is_settled(
    lanes: Lanes, monkeypatch: pytest.MonkeyPatch
) -> None:
    early = SimpleNamespace(settle=lambda *end: (("settled", end[1]), Report([], {}, {}, [], {})))
    monkeypatch.setattr(speculation, "pays_on", lambda device: device == CPU)
    monkeypatch.setattr(module, "speculate_lanes", lambda ends: [early, None])
    engine: Any = SimpleNamespace(train=lambda job, score: None)
    (one, _), (two, _) = lanes.run_round(["s", "t"], [[4], [6]], engine)  # type: ignore[list-item]
    assert one == ("settled", "s") and two[0] == "closed"  # type: ignore[comparison-overlap, index]


@pytest.mark.parametrize("joining", [False, True])
def test_an_evaluation_of_lanes_is_one_of_each_with_who_was_absent(
    lanes: Lanes, joining: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def split(end: Any, jobs: Any) -> list[Evaluated]:
        asked.append((end, [job.about for job in jobs]))
        rows = [torch.tensor(job.ids, dtype=torch.double)[:, None] for job in jobs]
        return [Evaluated({"test": {"personal": own}}, {}) for own in rows]

    monkeypatch.setattr(module, "split_evaluated", split)
    engine: Any = SimpleNamespace(evaluate=lambda job, parts: (sorted(job), parts))
    one, two = lanes.evaluate_parts(["s", "t"], [[4, 5], [6]], engine, ["test"], joining)  # type: ignore[list-item]
    assert one.scores == {"test": {"personal": {4: (4.0,), 5: (5.0,)}}} and one.failures == []
    assert two.scores == {"test": {"personal": {6: (6.0,)}}} and two.failures == [ABSENT]
    assert asked == [
        ((([0, 1], ["test"]), False), [(group, "s", joining), (group, "t", joining)])
        for group in ("a", "b")
    ]


def test_lanes_have_jobs_where_their_clients_are_of_the_group() -> None:
    groups = ["a", "b"] * 3
    own = [Experiment({"a": FedAvg(NET), "b": FedAvg(NET)}, DATA, n, groups) for n in (0, 1)]
    lanes, states = Lanes(own), [replace(one.start(), round=n) for n, one in enumerate(own)]
    jobs = lanes._training_jobs("b", states, [[0, 2], [5, 2, 1]])
    assert {lane: (job.ids, job.purpose, job.cohort.round) for lane, job in jobs.items()} == {
        1: ([1, 5], "train", 1)
    }
    tried = lanes._evaluation_jobs("a", states, [[0, 2], [5, 1]], True)
    assert {lane: (job.ids, job.purpose) for lane, job in tried.items()} == {0: ([0, 2], "join")}
    assert lanes._evaluation_jobs("a", states, [[0], []], False)[0].purpose == "adapt"


def test_courses_are_alike_up_to_numbers_of_each_client() -> None:
    plain, strong = FedProx(NET, strength=0.5), FedProx(NET, strength=2.0)
    assert likeness._courses(plain) == likeness._courses(strong)
    phase = plain.phases()[0]
    (update,) = phase.updates
    same = likeness._without_numbers(update)
    assert likeness._without_numbers(replace(update, lr=9.0, clip_norm=3.0)) == same
    for other in (
        replace(update, repeat=2),
        replace(update, pull=None),
        replace(update, train=("more",)),
        replace(update, rests=lambda blocks, client: {}),
    ):
        assert likeness._without_numbers(other) != same
    course = likeness._course(phase)
    for change in ({"epochs": 7}, {"on": "query"}, {"steps": 3}, {"updates": [update, update]}):
        assert likeness._course(replace(phase, **change)) != course, change


@dataclass(frozen=True)
class Longer(FedAvg):
    """Trains twice as long beyond a number."""

    limit: float = 0.5

    def phases(self) -> Any:
        return super().phases() * (2 if self.limit > 1 else 1)


def test_options_that_change_the_course_of_training_keep_runs_apart() -> None:
    lane: Any = lambda method: Experiment({"all": method}, DATA, 0)
    said = "their local training differs in more than numbers"
    assert likeness.why_not([lane(Longer(NET)), lane(Longer(NET, limit=2.0))]) == said
    assert likeness.why_not([lane(Longer(NET)), lane(Longer(NET, limit=0.75))]) is None
    assert likeness._frozen_differ({"a": "1", "b": "2"}, {"a": "1", "b": "3"}) == (
        'their frozen blocks differ: "b"'
    )


def test_optimizers_of_others_have_their_numbers_for_all_clients() -> None:
    @dataclass(frozen=True)
    class Odd:
        rate: float = 0.5

        def memory(self, values: Any) -> dict[str, Any]:
            return {}

    why: Any = likeness._why_unlike
    assert why(Odd(), Odd()) is None
    assert why(Odd(), Odd(0.25)) == "Odd has its numbers for all clients alike"
    odd = object()
    assert likeness._structure(odd) is odd  # type: ignore[arg-type]


def test_a_value_differs_if_one_of_the_others_is_not_the_first() -> None:
    assert numbers._differ([1, 2]) and numbers._differ([1, 1, 2]) and numbers._differ([2, 1, 1])
    assert not numbers._differ([1, 1, 1]) and not numbers._differ([1])
