"""What an experiment looks at before its first round, and what a round leaves to the next."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedblocks.core.admission import Refusal
from fedblocks.engines import close_round, speculation
from fedblocks.engines import round as module
from fedblocks.engines.net_check.kept_state import _attributes
from fedblocks.engines.round import Experiment, evaluation_job
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.methods.fedavg import FedAvg
from fedblocks.methods.fedper import FedPer
from fedblocks.testing.federations import small_federation, small_net

NET, DATA = small_net(), small_federation()


def test_every_method_of_an_experiment_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    names = ("check_structure", "_check_schedules", "check_untrained")
    for name in names:
        note = lambda method, name=name: asked.append((name, method))
        monkeypatch.setattr(module, name, note)
    methods = {"a": FedAvg(NET), "b": FedPer(NET)}
    Experiment(methods, DATA, 0, ["a", "b"] * 3)
    assert asked == [(name, method) for method in methods.values() for name in names]


def test_rounds_are_told_to_a_method_if_they_are_known() -> None:
    class Told(FedAvg):
        def over(self, rounds: int) -> Any:
            return replace(self, lr=rounds / 100)

    assert Experiment.of(Told(NET, lr=0.5), DATA).methods["all"].lr == 0.5
    assert Experiment.of(Told(NET, lr=0.5), DATA, rounds=25).methods["all"].lr == 0.25


def test_clients_that_never_train_are_no_part_of_the_population() -> None:
    experiment = Experiment({"all": FedAvg(NET)}, DATA, 0, unseen=[2, 5])
    assert experiment.cohort([0], 0).population == 4
    assert experiment.cohort([0], 0).unseen.tolist() == [2, 5]


def test_who_joins_has_kept_nothing() -> None:
    experiment = Experiment.of(FedPer(NET), DATA)
    start = experiment.start()
    fresh = evaluation_job(experiment, "all", [1], start, False).sent.blocks
    kept = {n: {k: v[0] + 1 for k, v in own.items()} for n, own in fresh.items()}
    state = replace(start, private={1: kept})
    for joining in (False, True):
        sent = evaluation_job(experiment, "all", [1], state, joining).sent.blocks
        same = [torch.equal(v, fresh[n][k]) for n, own in sent.items() for k, v in own.items()]
        assert all(same) == joining


@pytest.mark.parametrize("engine", [Sequential(), Vectorised(chunk=1)])
def test_what_was_sent_at_first_is_a_part_of_the_bytes(engine: Any) -> None:
    experiment = Experiment.of(FedAvg(NET), DATA)
    job = experiment.training_job("all", [1, 2], experiment.start())
    down = engine.train(job).bytes_down
    assert [*down] == ["model"] and torch.equal(down["model"], job.sent.bytes_down["model"])


def test_a_round_adds_to_what_others_kept_and_leaves_out_who_was_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    experiment = Experiment.of(FedPer(NET), DATA)
    job = experiment.training_job("all", [1, 2], experiment.start())
    own = close_round.ClientResults.of(job, Sequential().train(job))
    refusal = Refusal(2, "odd", "NaN")
    admitted = close_round.Admitted(own.uploads, job.cohort, [refusal])
    monkeypatch.setattr(close_round, "admit_group", lambda results, state: admitted)
    before: Any = {4: {"kept": {}}}
    state = replace(experiment.start(), private=before)
    after, report = close_round.close_round(experiment.methods, state, {"all": own})
    assert sorted(after.private) == [1, 4] and report.refusals == [refusal]


def test_nothing_is_begun_early_if_one_group_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speculation, "fitting", lambda uploads, server: uploads == server)
    results: Any = {n: SimpleNamespace(uploads=n) for n in ("fits", "odd")}
    state: Any = SimpleNamespace(server="fits")
    assert speculation.speculate({}, state, results, 1.0) is None


def test_attributes_of_python_are_not_kept_state() -> None:
    value = SimpleNamespace(own=1, __hidden=2)
    assert dict(_attributes(value, "its")) == {'its "own"': "1"}
