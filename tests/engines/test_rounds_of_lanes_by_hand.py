"""A round of lanes, what clients need of memory, and what a rehearsal asks first."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedblocks.core.admission import Refusal
from fedblocks.engines import memory, rehearsal
from fedblocks.engines.close_round import Report
from fedblocks.engines.lanes import lanes as module
from fedblocks.engines.lanes.lanes import Lanes
from fedblocks.engines.lanes.numbers import _options_read, read_once
from fedblocks.engines.memory import Need, measure_need
from fedblocks.engines.rehearsal import Rehearsal
from fedblocks.engines.replay.replayed import Replayed
from fedblocks.engines.vectorised import Vectorised
from fedblocks.methods.fedprox import FedProx
from fedblocks.testing.federations import small_net


def two_lanes(done: list[Any], failed: Refusal) -> Any:
    """Two lanes of one group, in the second of which a client fails."""

    def carry_out(jobs_for: Any, clients: Any, work: Any, absent: Any, stacks: bool) -> Any:
        done.append(("stacked", stacks))
        absent[1].append(failed)
        jobs = jobs_for(clients)
        yield jobs, work("job")

    jobs = {lane: SimpleNamespace(ids=ids) for lane, ids in enumerate(([0, 1], [2]))}
    experiment = lambda share: SimpleNamespace(
        methods={"all": "method"}, share=share, data=SimpleNamespace(device="here")
    )
    return SimpleNamespace(
        experiments=[experiment(0.5), experiment(1.0)], _carry_out=carry_out,
        _training_jobs=lambda group, states, ids: done.append((group, states, ids)) or jobs,
        _lay_out=lambda *given: done.append(given),
    )  # fmt: skip


@pytest.mark.parametrize("corrupt", [None, [[1], []]])
@pytest.mark.parametrize("early", [True, False])
def test_a_round_of_lanes_ends_with_who_was_refused_and_who_failed(
    corrupt: Any, early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[Any] = []
    old, failed = Refusal(9, "odd", "NaN"), Refusal(2, "failed", "KeyError")
    report = Report([0], {}, {}, [old], {})
    close = lambda *given: done.append(given) or (f"after {given[1]}", report)
    settled = SimpleNamespace(settle=lambda *given: close("early", *given[1:]))
    monkeypatch.setattr(
        module, "split_trained", lambda trained, jobs: [(trained, j.ids) for j in jobs]
    )
    monkeypatch.setattr(module, "spoil", lambda own, rubbish: (*own, rubbish))
    monkeypatch.setattr(module.ClientResults, "of", lambda job, trained: (job.ids, trained))
    monkeypatch.setattr(
        module, "fetch_bytes", lambda results: [("fetched", own) for own in results]
    )
    monkeypatch.setattr(module, "close_round", close)
    monkeypatch.setattr(module.speculation, "pays_on", lambda device: device == "here" and early)
    monkeypatch.setattr(module, "speculate_lanes", lambda ends: [settled, None])
    own, engine = two_lanes(done, failed), Vectorised()
    train = lambda self, job, score: f"{job} for {score}"
    monkeypatch.setattr(Vectorised, "train", train)
    states, clients, coming = ["s", "t"], [[0, 1], [2]], [[3], [4]]
    found: Any = Lanes.run_round(own, states, clients, engine, "score", coming, corrupt=corrupt)  # type: ignore[arg-type]
    rubbish = [[False, True], [False]] if corrupt else [[], []]
    results = [
        ("fetched", {"all": (ids, ("job for score", ids, bad))})
        for ids, bad in zip(([0, 1], [2]), rubbish, strict=True)
    ]
    assert done == [
        ("stacked", True), ("all", states, clients), (states, coming, engine),
        ("early" if early else {"all": "method"}, "s", results[0], 0.5),
        ({"all": "method"}, "t", results[1], 1.0),
    ]  # fmt: skip
    assert [after for after, _ in found] == ["after s", "after t"]
    assert [one.refusals for _, one in found] == [[old], [old, failed]]


def test_need_is_measured_with_the_client_that_has_most_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "_measure_stages", lambda *given: given[1:])
    sizes = np.array([4, 9, 7, 9, 8])
    data = SimpleNamespace(train=SimpleNamespace(sizes=sizes), clients=5)
    asked: list[Any] = []
    own: Any = SimpleNamespace(
        data=data, members=lambda clients: asked.append(clients) or {"a": [0, 2, 3, 4], "b": [1]}
    )
    found = measure_need(own, "a", ["test"])
    stages = lambda clients, chunk: ("a", [3] * clients, chunk, ["test"])
    assert found == Need((stages(2, 1), stages(3, 1)), (stages(2, 2), stages(3, 3)))  # type: ignore[arg-type]
    assert asked == [range(5)]


def test_what_a_server_reads_is_asked_twice_and_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []
    answers = iter(["first", "second"])
    method = SimpleNamespace(
        blocks=lambda: "layout",
        reads=lambda slots, cohort: done.append((slots, cohort)) or next(answers),
    )
    monkeypatch.setattr(rehearsal, "own_server", lambda layout, server: (layout, server))
    monkeypatch.setattr(rehearsal, "check_reads", lambda *given: done.append(given))
    steady = SimpleNamespace(check_answers=lambda *given: done.append(given))
    cohort = lambda clients, round: f"{clients} {round}"
    own: Any = SimpleNamespace(
        method=method, experiment=SimpleNamespace(cohort=cohort), clients=[4], steadiness=steady,
        state=SimpleNamespace(server="server", round=3), where=lambda hook: f"Own.{hook}",
    )  # fmt: skip
    Rehearsal._try_reads(own)
    slots = ("layout", "server")
    assert done == [
        (slots, "[4] 3"), (slots, "[4] 3"), (method.reads, "first", "second"),
        ("Own.reads", "first", "layout", slots, len("[4] 3")),
    ]  # fmt: skip


def test_programs_are_begun_anew_in_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []

    def begin(self: Replayed, round: int) -> None:
        done.append(round)
        self.round = round

    monkeypatch.setattr(Replayed, "_begin", begin)
    monkeypatch.setattr(
        Replayed,
        "_run",
        lambda self, visit: done.append((visit.kind, self._number(visit.kind))),
    )
    monkeypatch.setattr(
        "fedblocks.engines.replay.replayed._Visit",
        lambda stretch, order: SimpleNamespace(kind=stretch.kind),
    )
    own = Replayed(object(), 8)  # type: ignore[arg-type]
    stretch: Any = lambda round, kind: SimpleNamespace(
        local=SimpleNamespace(round=round), kind=kind
    )
    for round, kind in ((2, "a"), (2, "b"), (3, "a")):
        own(stretch(round, kind), ["step"])  # type: ignore[list-item]
    own(stretch(4, "a"), [])
    kinds = [one for one in done if isinstance(one, tuple)]
    assert [one for one in done if isinstance(one, int)] == [2, 3]
    assert [name for name, _ in kinds] == ["a", "b", "a"]
    assert kinds[0][1] == kinds[2][1] != kinds[1][1]


@dataclass(frozen=True)
class Cached(FedProx):
    """Makes something of its options once, in part by way of something else."""

    @cached_property
    def double(self) -> float:
        return 2 * self.strength  # type: ignore[operator]

    @cached_property
    def whole(self) -> float:
        return self.double + self.batch_size

    @cached_property
    def fixed(self) -> int:
        return 3


def test_what_is_made_once_is_known_by_the_options_that_it_reads() -> None:
    method = Cached(small_net())
    assert _options_read(method, "double") == {"strength"}
    assert _options_read(method, "whole") == {"strength", "batch_size"}
    assert _options_read(method, "fixed") == set()
    assert read_once(method) == {"strength": ["double", "whole"], "batch_size": ["whole"]}
    assert "double" not in vars(method)
