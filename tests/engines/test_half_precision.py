"""Half precision: products of nets in training are rounded, on every engine, and nothing else is.

1 + 2^-9 is no bfloat16 number: the nearest one is 1. With weights of zero and two classes, both get
half the chance, so a step of rate 1 on an example x of class 0 moves the weights by (x, -x) / 2,
exactly.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap

import fedblocks as fb
from fedblocks.config.model import Config
from fedblocks.core import mode
from fedblocks.core.errors import UserError
from fedblocks.core.net import Net
from fedblocks.core.precision import half_precision, refuse_half
from fedblocks.core.state import State
from fedblocks.data.federation import Federation
from fedblocks.data.rows import Rows
from fedblocks.engines.auto.trial import TrialPlan
from fedblocks.engines.processes.engine import Processes
from fedblocks.engines.round import Engine, Experiment, evaluate, run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.flower.wire.run_spec import RunSpec
from fedblocks.methods.fedavg import FedAvg
from fedblocks.runs.build import prepare
from fedblocks.runs.run import hardware, run

X = 1 + 2.0**-9
CLIENTS = 2


class Plain(nn.Module):
    """A product as users write it: no layer of torch's has a chance to round."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.weight.mT


def wide() -> nn.Module:
    """A layer large enough for our own product on a CPU, of which one input is not zero."""
    return nn.Sequential(nn.Flatten(), nn.ZeroPad1d((0, 2**14)), nn.Linear(2**14 + 1, 2))


NETS = {
    "dense": lambda: nn.Sequential(nn.Flatten(), nn.Linear(1, 2)),
    "wide": wide,
    "convolution": lambda: nn.Sequential(nn.Conv2d(1, 2, 1), nn.Flatten()),
    "plain": Plain,
}
ENGINES = {"sequential": Sequential, "vectorised": Vectorised}


def federation() -> Federation:
    """Each client has one example, to train on and to test."""
    x, y = torch.full((CLIENTS, 1, 1, 1), X), torch.zeros(CLIENTS, dtype=torch.long)
    rows, none = (Rows.of([np.arange(c, c + size) for c in range(CLIENTS)]) for size in (1, 0))
    return Federation(x, y, rows, none, rows, 2)


def experiment(net: str) -> Experiment:
    method = FedAvg(Net.of(NETS[net], input_shape=(1, 1, 1)), lr=1.0, batch_size=1)
    return Experiment.of(method, federation(), seed=0)


def train(net: str, engine: Engine, half: bool) -> tuple[Experiment, State, Tensor]:
    """A round from zeros on, and the weights of the input that is not zero: [2]."""
    trained = experiment(net)
    state = trained.start()
    for block in state.server.values():
        for value in block.values():
            value.zero_()
    with half_precision(half):
        state, _ = run_round(trained, state, list(range(CLIENTS)), engine)
    (weights,) = (v for b in state.server.values() for k, v in b.items() if "weight" in k)
    return trained, state, weights[0].flatten(1)[:, 0]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("net", NETS)
def test_products_in_training_round_their_factors_on_every_engine(net: str, engine: str) -> None:
    for half, x in ((True, 1.0), (False, X)):
        weights = train(net, ENGINES[engine](), half)[2]
        assert weights.dtype == torch.float32
        assert weights.tolist() == [x / 2, -x / 2]


def test_workers_round_as_their_parent_was_told() -> None:
    engine = Processes(count=2)
    try:
        assert train("dense", engine, True)[2].tolist() == [0.5, -0.5]
    finally:
        engine.close()


@pytest.mark.parametrize("engine", ENGINES)
def test_an_evaluation_rounds_nothing(engine: str) -> None:
    trained, state, _ = train("plain", ENGINES[engine](), half=True)
    with half_precision(True):
        scores = evaluate(trained, state, [0, 1], ENGINES[engine]())
    # the classes differ by X * (0.5 - -0.5)
    expected = float(torch.nn.functional.softplus(torch.tensor(-X, dtype=torch.double)))
    (view,) = scores.values()
    assert view[0][2] == pytest.approx(expected, abs=1e-7)  # rounded it were 5e-4 away


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_stay_in_single_precision(kind: type[nn.RNNBase], mapped: bool) -> None:
    net = Net.of(lambda: nn.Sequential(kind(3, 4, batch_first=True)), output=0, input_shape=(5, 3))
    params = {name: value[None] for name, value in net.init(0).items()}
    x = torch.randn(1, 2, 5, 3, generator=torch.Generator().manual_seed(0))

    def outputs(half: bool) -> Tensor:
        def one(params: dict[str, Tensor], x: Tensor) -> Tensor:
            with mode.mode(training=True, mapped=mapped):
                return net(params, x)

        with half_precision(half):
            if mapped:
                return vmap(one)(params, x)[0]
            return one({name: value[0] for name, value in params.items()}, x[0])

    assert torch.equal(outputs(True), outputs(False))


SMALL = {
    "rounds": 2,
    "device": "cpu",
    "data": {
        "name": "gaussian",
        "clients": 4,
        "options": {"rows": 240, "classes": 3, "features": 5},
    },
    "net": {"name": "mlp", "hidden": [6]},
    "method": {"name": "fedavg", "lr": 0.1, "batch_size": 4},
    "precision": "bf16",
}


def test_steps_in_half_precision_are_repeated_to_the_bit() -> None:
    prepared = prepare(Config.of(SMALL))
    ends = []
    for engine in (Sequential(replay=False), Sequential(worth=2)):
        state = prepared.experiment.start()
        with hardware(prepared.config):
            for _ in range(2):
                state, _ = run_round(prepared.experiment, state, prepared.clients, engine)
        ends.append(state.server["model"])
    (replayed,) = engine.known.values()
    assert replayed.programs
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_a_run_in_half_precision_learns_as_one_in_single_precision(tmp_path: Path) -> None:
    means = {}
    for precision in ("float32", "bf16"):
        config = Config.of(
            {
                "rounds": 8,
                "device": "cpu",
                "engine": "sequential",
                "precision": precision,
                "data": {"name": "digits", "clients": 5},
                "net": {"name": "mlp", "hidden": [16]},
                "method": {"name": "fedavg", "lr": 0.3, "batch_size": 16},
                "evaluation": {"every": 8, "parts": ["test"]},
            }
        )
        own = run(config, tmp_path / precision).accuracies()
        means[precision] = sum(own.values()) / len(own)
    assert means["float32"] > 0.8 and abs(means["bf16"] - means["float32"]) < 0.03


def test_python_takes_half_precision_too(tmp_path: Path) -> None:
    models = []
    for precision in ("float32", "bf16"):
        method = FedAvg(Net.of(NETS["plain"]), lr=1.0, batch_size=1)
        options = {"precision": precision, "device": "cpu", "on_note": lambda note: None}
        end = fb.run(method, federation(), 1, tmp_path / precision, **options)
        models.append(end.state().server["model"]["weight"])
    # weights of zero, for the module does not say how it is reset
    assert [model.flatten().tolist() for model in models] == [[X / 2, -X / 2], [0.5, -0.5]]


def test_a_net_of_other_numbers_is_refused() -> None:
    with pytest.raises(UserError, match="nets of float32 numbers, and this one has float64"):
        refuse_half([torch.float32, torch.float64], torch.device("cpu"))


def test_a_run_of_a_net_of_other_numbers_is_refused(tmp_path: Path) -> None:
    method = FedAvg(Net.of(NETS["plain"], dtype=torch.float64), lr=1.0, batch_size=1)
    data = federation()
    data = replace(data, x=data.x.double())
    with pytest.raises(UserError, match="precision"):
        fb.run(method, data, 1, tmp_path / "run", precision="bf16", device="cpu")


def test_clients_of_a_federation_are_not_asked_for_half_precision() -> None:
    with pytest.raises(UserError, match="train in single precision"):
        RunSpec.of(Config.of(SMALL), federation(), "federation", "run")


def test_a_trial_in_half_precision_is_another_trial() -> None:
    plan = TrialPlan(experiment("plain"), [0, 1], 2)
    with half_precision(True):
        half = plan.key()
    assert half != plan.key()


def test_features_are_handed_out_in_single_precision() -> None:
    net = Net.of(lambda: nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)))
    with half_precision(True), mode.mode(training=True, mapped=False):
        logits, features = net.with_features(net.init(0), torch.ones(1, 3))
    assert logits.dtype == features.dtype == torch.float32
