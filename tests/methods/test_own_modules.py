"""Methods that need no special net run on a user's own modules, with equal results on
both engines.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedblocks.core.net import Net
from fedblocks.data.federation import Federation
from fedblocks.data.rows import Rows
from fedblocks.engines.round import Experiment, evaluate, run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.methods import METHODS

SIZES = (9, 4, 6)
STEPS, WIDTH, CLASSES = 5, 4, 3


class Residual(nn.Module):
    """Convolutions with a norm, added to their input: no chain."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv1d(WIDTH, 6, 3, padding=1)
        self.inner = nn.Sequential(nn.BatchNorm1d(6), nn.ReLU(), nn.Conv1d(6, 6, 3, padding=1))
        self.fc = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x.transpose(1, 2))
        return self.fc((y + self.inner(y)).mean(-1))


class Encoder(nn.Module):
    """A transformer encoder over the steps, and dropout after it."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            WIDTH, 2, dim_feedforward=8, dropout=0.0, batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.dropout = nn.Dropout(0.1)
        self.fc = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.dropout(self.encoder(x)).mean(1))


class Recurrent(nn.Module):
    """An LSTM of two layers, of which the last state is used."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, 5, num_layers=2, batch_first=True)
        self.fc = nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.lstm(x)[1][0][-1])


MODULES: dict[str, type[nn.Module]] = {
    "residual": Residual,
    "transformer": Encoder,
    "lstm": Recurrent,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "local": {},
    "fedavg": {},
    "fedprox": {"strength": 0.5},
    "fedavg_ft": {},
    "fedper": {},
    "ditto": {},
    "ifca": {"clusters": 2},
    "fedem": {"components": 2},
    "pfedmb": {"branches": 2},
    "modfl": {"operations": 2},
}


def federation() -> Federation:
    draw = np.random.Generator(np.random.PCG64(6))
    cuts = np.split(np.arange(2 * sum(SIZES)), np.cumsum([s for s in SIZES for _ in range(2)])[:-1])
    x = torch.from_numpy(draw.normal(size=(2 * sum(SIZES), STEPS, WIDTH)))
    y = torch.from_numpy(draw.integers(0, CLASSES, 2 * sum(SIZES)))
    parts = Rows.of(cuts[::2]), Rows.none(len(SIZES)), Rows.of(cuts[1::2])
    return Federation(x, y, *parts, classes=CLASSES, tags={"operation": np.array([0, 1, 0])})


def leaves(tree: Any, path: str = "") -> dict[str, Tensor]:
    if isinstance(tree, Tensor):
        return {path: tree}
    return {
        place: v
        for key, value in tree.items()
        for place, v in leaves(value, f"{path}/{key}").items()
    }


# torch's note on attention inside vmap
@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("name", OPTIONS)
def test_a_method_runs_on_a_module_of_ones_own(name: str, module: str) -> None:
    net = Net.of(MODULES[module](), head="fc", dtype=torch.float64)
    method = METHODS[name](net=net, lr=0.1, batch_size=4, **OPTIONS[name])
    experiment = Experiment.of(method, federation(), seed=2)
    start, ends, scores = experiment.start(), [], []
    for engine in (Sequential(), Vectorised(chunk=2)):
        state = start
        for _ in range(2):
            state, report = run_round(experiment, state, range(len(SIZES)), engine)
            assert report.refusals == []
        ends.append({**leaves(state.server), **leaves(state.private)})
        scores.append(evaluate(experiment, state, range(len(SIZES)), engine)["personal"])
    assert ends[0].keys() == ends[1].keys()
    for place, value in ends[0].items():
        torch.testing.assert_close(ends[1][place], value, rtol=1e-8, atol=1e-10, msg=place)
    assert (
        any(not torch.equal(value, ends[0][place]) for place, value in leaves(start.server).items())
        or name == "local"
    )
    for client, actual in scores[0].items():
        assert actual == pytest.approx(scores[1][client], abs=1e-8)
