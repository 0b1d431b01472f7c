"""A frozen block is in the model of every client, held once, written by nobody and never sent."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn

import fedblocks as fb
from fedblocks.core.errors import UserError
from fedblocks.core.frozen import frozen_hashes
from fedblocks.core.frozen_hash import content_hash
from fedblocks.core.plan import plan
from fedblocks.engines.lanes.lanes import Lanes
from fedblocks.engines.processes.engine import Processes
from fedblocks.engines.round import Experiment, evaluate, run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised

WORKERS = Processes(count=2)
ENGINES = pytest.mark.parametrize(
    "engine", [Sequential(worth=1), Vectorised(chunk=3), WORKERS], ids=lambda e: e.name
)


@pytest.fixture(scope="module", autouse=True)
def workers_end():
    yield
    WORKERS.close()


def net() -> fb.Net:
    return fb.Net.of(
        lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), dtype=torch.float64
    )


@dataclass(frozen=True, eq=False)
class Probe(fb.Method):
    """A head on a body that nobody trains."""

    home: type = fb.Frozen

    def blocks(self):
        return {"body": self.home(self.net.body), "head": fb.Shared(self.net.head)}

    def predict(self, blocks, x):
        return self.net(fb.join(blocks["body"], blocks["head"]), x)

    def phases(self):
        return [fb.Phase((self.step("head"),), self.epochs)]


class WritesBody(Probe):
    """Tries to change the body before it trains."""

    def prepare(self, blocks, client):
        return {**blocks, "body": {k: v + 1 for k, v in blocks["body"].items()}}


class TrainsBody(Probe):
    def phases(self):
        return [fb.Phase((self.step("body", "head"),), self.epochs)]


class PullsBody(Probe):
    """The head of the same size would be pulled to a frozen one."""

    def blocks(self):
        return {"start": fb.Frozen(self.net.whole), "model": fb.Shared(self.net.whole)}

    def predict(self, blocks, x):
        return self.net(blocks["model"], x)

    def phases(self):
        return [fb.Phase((self.step("model", pull=fb.Pull("model", "start", 0.7)),), self.epochs)]


def after(method, federation, engine, rounds=2):
    experiment = Experiment.of(method, federation)
    state, reports = experiment.start(), []
    for _ in range(rounds):
        state, report = run_round(experiment, state, range(4), engine)
        reports.append(report)
    return experiment, state, reports


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-12, atol=1e-12)


@ENGINES
def test_a_frozen_block_is_a_fresh_one_that_nobody_trains(federation, engine):
    # a fresh block starts from the same values in every round, which is the oracle here
    _, frozen, reports = after(Probe(net(), batch_size=4), federation, engine)
    _, fresh, _ = after(Probe(net(), batch_size=4, home=fb.Fresh), federation, Sequential())
    assert_same(frozen.server["head"], fresh.server["head"])
    start = Experiment.of(Probe(net()), federation).start().server["head"]["2.weight"]
    assert not torch.equal(frozen.server["head"]["2.weight"], start)
    for report in reports:
        assert set(report.bytes_down) == set(report.bytes_up) == {"head"}


@ENGINES
def test_a_frozen_block_is_in_no_state(federation, engine):
    _, state, _ = after(Probe(net(), batch_size=4), federation, engine)
    assert set(state.server) == set(state.memory) == {"head"}
    assert not state.private


@ENGINES
def test_nobody_can_write_a_frozen_block(federation, engine):
    _, honest, _ = after(Probe(net(), batch_size=4), federation, engine)
    experiment, other, _ = after(WritesBody(net(), batch_size=4), federation, engine)
    assert_same(honest.server["head"], other.server["head"])
    experiment.frozen.check()


@ENGINES
def test_models_are_evaluated_with_their_frozen_blocks(federation, engine):
    experiment, state, _ = after(Probe(net(), batch_size=4), federation, engine)
    scores = evaluate(experiment, state, range(4), engine)["personal"]
    body = experiment.methods["all"].net.init(fb.core.random.derive(0, "init", 0))
    params = {**body, **{k: v[0] for k, v in state.server["head"].items()}}
    for client in range(4):
        rows = federation.test[client]
        logits = experiment.methods["all"].net(params, federation.x[rows])
        right = int((logits.argmax(-1) == federation.y[rows]).sum())
        assert scores[client][0] == right


def test_every_client_of_a_stack_sees_the_same_memory(federation):
    experiment = Experiment.of(Probe(net()), federation)
    job = experiment.training_job("all", range(4), experiment.start())
    assert "body" not in job.sent.blocks
    held = job.several([0, 1, 2], torch.func.vmap).frozen["body"]["0.weight"]
    assert held.shape == (5, 6)
    assert held.data_ptr() == experiment.beginnings["all"].frozen["body"]["0.weight"].data_ptr()


def test_a_phase_may_not_train_a_frozen_block(federation):
    with pytest.raises(UserError, match='a phase of TrainsBody trains "body", which is frozen'):
        Experiment.of(TrainsBody(net()), federation)


@ENGINES
def test_a_block_can_be_pulled_to_a_frozen_one(federation, engine):
    _, state, _ = after(PullsBody(net(), batch_size=4), federation, engine)
    _, reference, _ = after(PullsBody(net(), batch_size=4), federation, Sequential(replay=False))
    assert_same(state.server["model"], reference.server["model"])
    _, free, _ = after(fb.FedAvg(net(), batch_size=4), federation, Sequential(replay=False))
    assert not torch.allclose(state.server["model"]["0.weight"], free.server["model"]["0.weight"])


def test_a_change_of_a_frozen_block_is_noticed(federation):
    experiment = Experiment.of(Probe(net()), federation)
    experiment.frozen.check()
    experiment.beginnings["all"].frozen["body"]["0.bias"][0] += 1e-9
    with pytest.raises(UserError, match='the frozen block "all/body" has changed since the start'):
        experiment.frozen.check()


def test_the_plan_says_that_a_block_is_frozen():
    row = plan(Probe(net())).rows[0]
    assert row == {
        "block": "body",
        "home": "everybody, frozen",
        "sees": "the same as all",
        "writes": "-",
        "phases": "-",
    }


def test_runs_whose_frozen_blocks_differ_are_no_lanes(federation):
    # the seed makes the body, so two seeds have two bodies
    experiments = [Experiment.of(Probe(net(), batch_size=4), federation, seed) for seed in (0, 1)]
    with pytest.raises(UserError, match='their frozen blocks differ: "all/body"'):
        Lanes(experiments)
    Lanes([Experiment.of(Probe(net(), batch_size=4, lr=lr), federation) for lr in (0.1, 0.2)])


def test_lanes_share_their_frozen_blocks(federation):
    experiments = [
        Experiment.of(Probe(net(), batch_size=4, lr=lr), federation) for lr in (0.1, 0.3)
    ]
    ends = Lanes(experiments).run_round(
        [one.start() for one in experiments], [range(4), range(4)], Vectorised()
    )
    for experiment, (state, _) in zip(experiments, ends, strict=True):
        alone, _ = run_round(experiment, experiment.start(), range(4), Sequential())
        assert_same(state.server["head"], alone.server["head"])


def test_the_content_hash_sees_names_types_shapes_and_numbers():
    params = {"a": torch.arange(6.0).view(2, 3)}
    others = [
        {"b": params["a"]},
        {"a": params["a"].double()},
        {"a": params["a"].view(3, 2)},
        {"a": params["a"].clone().index_fill(0, torch.tensor(1), 0.0)},
        {},
    ]
    assert content_hash(params) == content_hash({"a": params["a"].t().contiguous().t()})
    assert len({content_hash(one) for one in (params, *others)}) == 6


def test_frozen_hashes_depend_on_the_seed_alone():
    method = Probe(net())
    assert frozen_hashes(method, 3) == frozen_hashes(Probe(net(), lr=0.7), 3)
    assert frozen_hashes(method, 3) != frozen_hashes(method, 4)
    assert set(frozen_hashes(method, 3)) == {"body"}
    assert frozen_hashes(fb.FedAvg(net()), 3) == {}
