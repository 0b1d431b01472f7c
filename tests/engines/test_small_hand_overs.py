"""Small pieces of the end of a round and of a first step, by hand."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from fedblocks.core.local_round import step_key
from fedblocks.engines import close_round
from fedblocks.engines.auto import trial
from fedblocks.engines.first_step import _length, _product, _way, _ways
from fedblocks.engines.processes.engine import WorkerGroup
from fedblocks.engines.replay.replayed import _Visit
from fedblocks.engines.replay.running import _FOR_WAY_BACK, _kernel, _with_gradients
from fedblocks.engines.round import Experiment
from fedblocks.engines.sequential import Sequential
from fedblocks.methods.ditto import Ditto
from fedblocks.testing.federations import small_federation, small_net


def test_bytes_are_fetched_for_every_lane_and_group_in_their_places() -> None:
    experiment = Experiment.of(Ditto(small_net()), small_federation(), 0)
    job = experiment.training_job("all", [0, 1], experiment.start())
    own = close_round.ClientResults.of(job, Sequential().train(job))
    down = {"shared": torch.tensor([3, 4])}
    lanes = [
        {"a": replace(own, trained=replace(own.trained, bytes_down=down), bytes_up={})},
        {"b": replace(own, bytes_up={"shared": torch.tensor([5, 6]), "more": torch.tensor([7])})},
    ]
    first, second = close_round.fetch_bytes(lanes)
    assert {k: v.tolist() for k, v in first["a"].trained.bytes_down.items()} == {"shared": [3, 4]}
    assert first["a"].bytes_up == {}
    up = {name: sizes.tolist() for name, sizes in second["b"].bytes_up.items()}
    assert up == {"shared": [5, 6], "more": [7]}
    # what was counted is on the host in one piece
    assert first["a"].trained.bytes_down["shared"].untyped_storage().nbytes() > 2 * 8
    none = replace(own, trained=replace(own.trained, bytes_down={}), bytes_up={})
    assert close_round.fetch_bytes([{"a": none}]) == [{"a": none}]


def test_ways_are_measured_in_double_precision_without_history() -> None:
    after = {"w": torch.tensor([2.0**24, 3.0]).requires_grad_(), "n": torch.tensor([7])}
    before = {"w": torch.tensor([0.5, 0.0]), "other": torch.zeros(1)}
    way = _way(after, before)
    assert way.keys() == {"w"} and way["w"].tolist() == [2.0**24 - 0.5, 3.0]
    assert not way["w"].requires_grad and _way(before, before)["w"].dtype == torch.double
    again = _way(before, {"w": torch.tensor([2.0**24, 3.0]).requires_grad_()})
    assert again["w"].tolist() == [0.5 - 2.0**24, -3.0] and not again["w"].requires_grad
    small = {"a": torch.tensor([3e-30]), "b": torch.tensor([4e-30]).requires_grad_()}
    assert _length(small) == pytest.approx(
        5e-30, rel=1e-6, abs=0
    )  # whose squares are 0 in single precision
    assert _product({"a": torch.tensor([2.0, 3.0])}, {"a": torch.tensor([5.0, 7.0])}) == 31.0


def test_a_way_has_a_length_and_a_part_along_that_of_training() -> None:
    block = lambda *values: {"w": torch.tensor(values)}
    ways = _ways(
        {"a": block(3.0, 4.0), "b": block(1.0, 0.0), "c": block(0.0)},
        {"a": block(0.0, 0.0), "b": block(0.0, 0.0)},
        {"a": block(0.0, 2.0)},
        largest=0.0,
    )
    assert ways == {"a": 5.0, "a, along": pytest.approx(4.0), "b": 1.0}
    usual = _ways({"a": block(1e-9)}, {"a": block(0.0)}, {"a": block(1e-9)}, largest=1.0)
    assert usual["a, along"] < 1e-10  # as short as rounding: without a direction


def test_only_a_fused_recurrent_layer_with_a_way_back_runs_with_gradients() -> None:
    fused, add = torch.ops.aten.mkldnn_rnn_layer.default, torch.ops.aten.add.Tensor
    recorded = lambda call, outs: SimpleNamespace(call=call, outs=tuple(range(outs)))
    kernel = lambda call, outs, direct=False: _kernel(recorded(call, outs), direct)  # type: ignore[arg-type]
    way_back = kernel(fused, _FOR_WAY_BACK)
    assert isinstance(way_back, partial) and way_back.func is _with_gradients
    assert way_back.args == (fused._op,)
    assert kernel(fused, _FOR_WAY_BACK - 1) is fused._op
    assert kernel(add, _FOR_WAY_BACK) is add._op
    assert kernel(add, 1, direct=True) is torch._C._VariableFunctions.add  # type: ignore[attr-defined]
    with torch.no_grad():
        assert _with_gradients(lambda x: (torch.is_grad_enabled(), x), 3) == (True, 3)


def test_steps_that_are_repeated_have_the_noise_of_plain_ones() -> None:
    local = SimpleNamespace(tensors={"key": torch.tensor(5)})
    stretch = SimpleNamespace(local=local, number=2)
    visit = _Visit(stretch, [None] * 3)  # type: ignore[arg-type, list-item]
    plain = [int(step_key(stretch, torch.tensor(count))) for count in (1, 2, 3)]  # type: ignore[arg-type]
    assert [int(key) for key in visit.keys] == plain and len({*plain}) == 3


def test_the_seconds_of_a_trial_are_those_of_training_its_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, trained = iter([3.0, 4.0, 5.5]), []
    monkeypatch.setattr(trial.time, "perf_counter", lambda: next(clock))
    engine = SimpleNamespace(train=lambda job: trained.append((job, next(clock))))
    assert trial.measure_seconds(engine, "job") == 2.5  # type: ignore[arg-type]
    assert trained == [("job", 4.0)]  # in between


def test_tensors_of_the_last_cohort_are_kept_and_of_no_other() -> None:
    experiment = Experiment.of(Ditto(small_net()), small_federation(tags=("kind",)), 3)
    first = experiment.cohort([4, 1], 0)
    assert first.ids.tolist() == [4, 1] and first.sizes.tolist() == [5.0, 7.0]
    again = experiment.cohort([4, 1], 7)
    assert again.ids is first.ids and again.round == 7 and again.seed != first.seed
    experiment.cohort([0], 0)
    assert list(experiment.last_cohort) == [(0,)]
    assert first.population == 6 and first.tags["kind"].tolist() == [0, 1]


def test_engines_are_tried_with_the_threads_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    seen: list[int] = []

    def try_engines(plan: object, engines: object) -> dict[str, float]:
        seen.append(torch.get_num_threads())
        raise ValueError("failed")

    monkeypatch.setattr(trial, "_try_engines", try_engines)
    plan = SimpleNamespace(threads=before + 1, engines=dict)
    with pytest.raises(ValueError, match="failed"):
        trial.try_out(plan)  # type: ignore[arg-type]
    assert seen == [before + 1] and torch.get_num_threads() == before


def test_kinds_of_jobs_are_kept_without_what_is_sent_and_known_again() -> None:
    experiment = Experiment.of(Ditto(small_net()), small_federation(), 0)
    job = experiment.training_job("all", [0, 1], experiment.start())
    group = WorkerGroup()
    assert group._kind(job) == 0 == group._kind(replace(job, cohort=job.cohort))
    other = replace(job, training=False)
    assert group._kind(other) == 1 and group._kind(job) == 0
    for kept in group.kinds.values():
        assert kept.sent.blocks == {} and kept.sent.reads == {} and kept.method is job.method
    assert job.sent.blocks != {}
