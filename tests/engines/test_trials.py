"""How large a trial of engines is: more clients and steps, the smaller the net; and what a recorded
call writes.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from fedblocks.core.net import Net
from fedblocks.engines.auto import trial
from fedblocks.engines.auto.measured import CACHE, Measured, folder, keep, recall
from fedblocks.engines.auto.trial import TrialPlan
from fedblocks.engines.processes.engine import Processes
from fedblocks.engines.processes.workers import Workers
from fedblocks.engines.replay.folding import written
from fedblocks.engines.replay.program import RecordedCall, Ref


def net(units: int) -> Net:
    return Net.of(lambda: nn.Sequential(nn.Linear(3, units), nn.ReLU(), nn.Linear(units, 2)))


def plan(cohort: int = 20, processes: int = 3) -> TrialPlan:
    methods = {"a": SimpleNamespace(net=net(2)), "b": SimpleNamespace(net=net(9))}
    methods |= {"c": SimpleNamespace(net=net(4))}
    experiment: Any = SimpleNamespace(methods=methods)
    return TrialPlan(experiment, range(40), cohort, processes=processes)


def test_the_group_with_the_largest_net_decides() -> None:
    assert plan().group == "b"


@pytest.mark.parametrize(
    ("first", "clients", "steps"),
    [
        (0.01, 20, 10),  # 25 clients take 0.25 s, and there are 20; 2 / (20 * 0.01) steps
        (0.02, 12, 8),  # 12 clients take 0.25 s; 2 / (12 * 0.02)
        (0.05, 8, 5),  # at least 8; 2 / (8 * 0.05)
        (0.5, 8, 4),  # at least 4 steps
        (1e-12, 20, 12),  # at most 12
        (1.0, 8, 4),
        (1.5, 3, 4),  # a client for each process
    ],
)
def test_a_trial_has_more_clients_and_steps_the_smaller_the_net(
    first: float, clients: int, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[tuple[int, int, int]] = []

    def note(_: TrialPlan, count: int, steps: int = trial.STEPS, turn: int = 0) -> Any:
        jobs.append((count, steps, turn))
        return len(jobs)

    tried: list[set[str]] = []
    monkeypatch.setattr(trial, "trial_job", note)
    monkeypatch.setattr(trial, "measure_seconds", lambda *_: first)

    def take_turn(engines: Any, job_of: Any) -> dict[str, float]:
        tried.append({*engines})
        job_of(3)
        return {}

    monkeypatch.setattr(trial, "_in_turn", take_turn)
    trial._try_engines(plan(), {"sequential": None, "vectorised": None})  # type: ignore[dict-item]
    assert jobs == [(1, 4, 0), (1, 4, 0), (clients, steps, 3)]
    assert ("vectorised" in tried[0]) == (first <= 1.0)


def test_workers_that_were_tried_are_sent_home(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[int] = []
    monkeypatch.setattr(trial, "trial_job", lambda *_: None)
    monkeypatch.setattr(trial, "measure_seconds", lambda *_: 1.0)
    monkeypatch.setattr(trial, "_in_turn", lambda engines, _: {"sequential": 1.0})
    monkeypatch.setattr(Processes, "close", lambda self: closed.append(self.count))
    engines: Any = {"sequential": None, "processes": Processes(count=3)}
    assert trial._try_engines(plan(), engines) == {"sequential": 1.0} and closed == [3]


def test_of_two_first_trials_the_shorter_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([3.0, 0.5])
    jobs: list[int] = []
    monkeypatch.setattr(trial, "trial_job", lambda _, count, steps=4, turn=0: jobs.append(count))
    monkeypatch.setattr(trial, "measure_seconds", lambda *_: next(seconds))
    monkeypatch.setattr(trial, "_in_turn", lambda engines, job_of: job_of(0) or {})
    trial._try_engines(plan(), {"sequential": None, "vectorised": None})  # type: ignore[dict-item]
    assert jobs == [1, 1, 8]


def test_what_was_measured_is_remembered_whole_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv(CACHE, str(tmp_path / "deep" / "engines"))
    one, nine = (Measured({"sequential": seconds}) for seconds in (1.0, 9.0))
    assert recall("k") is None
    assert keep("k", one) == one
    assert keep("k", nine).seconds == one.seconds  # the first decides
    assert [p.name for p in (tmp_path / "deep" / "engines").iterdir()] == ["k.json"]
    (tmp_path / "deep" / "engines" / "k.json").write_text(
        '{"seconds": {"vectorised": 1.0}, "is_disturbed": false, "at": 1.0}'
    )
    assert recall("k") is None
    monkeypatch.setenv(CACHE, str(tmp_path / "deep" / "engines" / "k.json"))
    assert keep("k", nine) == nine  # nowhere to write
    monkeypatch.delenv(CACHE)
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert str(folder()) == "/caches/fedblocks/engines"


def test_a_tensor_that_a_keyword_names_is_written_too() -> None:
    add = torch.ops.aten.add.out
    call = RecordedCall(add, (Ref(0), Ref(1)), (("alpha", 2), ("out", Ref(2))), (2,))
    assert written(call) == {2}
    in_place = RecordedCall(torch.ops.aten.add_.Tensor, (Ref(0), Ref(1)), (), (0,))
    assert written(in_place) == {0}
    assert written(RecordedCall(torch.ops.aten.add.Tensor, (Ref(0), Ref(1)), (), (2,))) == set()


def test_workers_end_with_the_process_that_started_them() -> None:
    workers = Workers(2, lambda channel: None)
    assert all(one.process.daemon for one in workers.workers)
    assert [one.process.name for one in workers.workers] == ["worker-0", "worker-1"]
    workers.close()
    for one in workers.workers:
        one.process.join(10)
        assert one.process.exitcode is not None
