"""What a round does whatever its clients are sent is laid out before it begins, and a GPU is asked
once for what all lanes did.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from fedblocks.core.admission import Examination
from fedblocks.core.state import State
from fedblocks.core.trees import leaves
from fedblocks.engines import speculation
from fedblocks.engines.close_round import ClientResults, fetch_bytes, report_of
from fedblocks.engines.lanes.lanes import Lanes
from fedblocks.engines.plans import Roster, StackPlan
from fedblocks.engines.round import Experiment, run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.testing import EXAMPLES

ENGINE = Vectorised(chunk=3)  # several stacks of the example's clients


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Rounds of the plans that are made, on a device that is busy meanwhile."""
    made: list[tuple[int, ...]] = []
    make: Callable[[Roster, Sequence[int]], StackPlan] = Roster.plan

    def note(self: Roster, members: Sequence[int]) -> StackPlan:
        made.append(tuple({round for _, round, _ in self.origins}))
        return make(self, members)

    monkeypatch.setattr(Roster, "plan", note)
    monkeypatch.setattr(speculation, "pays_on", lambda device: True)
    return made


def lanes_of(name: str) -> list[Experiment]:
    example = EXAMPLES[name]()
    experiment = example.experiment(example.federation)
    return [
        Experiment(
            {group: replace(method, lr=method.lr * times) for group, method in own.items()},
            experiment.data,
            seed,
            experiment.groups,
        )
        for own in [experiment.methods]
        for seed, times in ((0, 1.0), (1, 0.5))
    ]


def same(one: State, other: State) -> bool:
    trees = [(own.server, dict(own.private)) for own in (one, other)]
    return all(map(torch.equal, *(leaves(tree) for tree in trees)))


def test_the_plans_of_a_coming_round_are_laid_out_once_and_used(plans: list[Any]) -> None:
    experiment = lanes_of("fedper")[0]
    everybody = list(range(experiment.data.clients))
    stacks = -(-len(everybody) // ENGINE.chunk)
    state, _ = run_round(experiment, experiment.start(), everybody, ENGINE, coming=everybody)
    assert plans == [(0,)] * stacks + [(1,)] * stacks
    after, _ = run_round(experiment, state, everybody, ENGINE)
    assert plans == [(0,)] * stacks + [(1,)] * stacks
    alone = lanes_of("fedper")[0]
    begun, _ = run_round(alone, alone.start(), everybody, ENGINE)
    assert same(after, run_round(alone, begun, everybody, ENGINE)[0])


def test_a_plan_for_other_clients_is_not_used_and_forgotten(plans: list[Any]) -> None:
    experiment = lanes_of("fedper")[0]
    everybody = list(range(experiment.data.clients))
    state, _ = run_round(experiment, experiment.start(), everybody, ENGINE, coming=everybody[:2])
    after, _ = run_round(experiment, state, everybody, ENGINE, coming=everybody[:1])
    alone = lanes_of("fedper")[0]
    begun, _ = run_round(alone, alone.start(), everybody, ENGINE)
    assert same(after, run_round(alone, begun, everybody, ENGINE)[0])
    assert len(experiment.tables._plans) == 1


def test_the_coming_round_of_all_lanes_is_laid_out_as_one_stack(plans: list[Any]) -> None:
    experiments, engine = lanes_of("fedper"), Vectorised(chunk=512)
    cohorts = [list(range(own.data.clients)) for own in experiments]
    lanes = Lanes(experiments)
    states = [own.start() for own in experiments]
    states = [end for end, _ in lanes.run_round(states, cohorts, engine, coming=cohorts)]
    assert plans == [(0,), (1,)]
    ends = lanes.run_round(states, cohorts, engine)
    assert plans == [(0,), (1,)]
    others = Lanes(lanes_of("fedper"))
    begun = [own.start() for own in others.experiments]
    begun = [end for end, _ in others.run_round(begun, cohorts, engine)]
    for (end, _), (other, _) in zip(ends, others.run_round(begun, cohorts, engine), strict=True):
        assert same(end, other)


def test_clients_one_after_another_need_no_plan_of_a_stack(plans: list[Any]) -> None:
    experiment = lanes_of("fedper")[0]
    everybody = list(range(experiment.data.clients))
    run_round(experiment, experiment.start(), everybody, Sequential(), coming=everybody)
    assert {*plans} == {(0,)} and experiment.tables._plans == {}


def test_the_clients_of_a_job_are_known_without_asking_a_device() -> None:
    experiment = lanes_of("fedper")[0]
    job = experiment.training_job("all", [2, 0], experiment.start())
    assert vars(job)["ids"] == [2, 0] == job.cohort.ids.tolist()
    fewer = replace(job, cohort=job.cohort.take(torch.tensor([1])))
    assert fewer.ids == [0]


def test_bytes_of_all_lanes_are_fetched_at_once_and_stay_what_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    results = []
    for experiment in lanes_of("pfedmb"):
        job = experiment.training_job("all", [0, 1, 2], experiment.start())
        results.append({"all": ClientResults.of(job, Vectorised().train(job))})
    before = [report_of(own, []) for own in results]
    fetches: list[int] = []
    cpu = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda t: (fetches.append(len(t)), cpu(t))[1])
    after = [report_of(own, []) for own in fetch_bytes(results)]
    assert [*map(vars, after)] == [*map(vars, before)] and all(own.bytes_up for own in after)
    assert len(fetches) == 1


def test_parts_of_an_examination_ask_for_the_whole_once() -> None:
    ids = torch.arange(4)
    whole = Examination([], ids, torch.ones(1, 4, dtype=torch.bool))
    parts = [Examination([], ids[:2], whole.passed[:, :2], whole), whole]
    assert all(part.is_clean() for part in parts)
    whole.passed[:] = False  # nobody looks again
    assert parts[0].is_clean() and "_all_passed" not in vars(parts[0])


def test_a_part_is_clean_where_another_part_is_not() -> None:
    ids, passed = torch.arange(4), torch.tensor([[True, True, False, True]])
    whole = Examination([], ids, passed)
    parts = [Examination([], ids[at], passed[:, at], whole) for at in (slice(2), slice(2, 4))]
    assert [part.is_clean() for part in parts] == [True, False]
