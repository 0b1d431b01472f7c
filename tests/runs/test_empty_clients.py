"""Clients without training rows, in a federation that was made with them: a run warns of them, and
they change nothing.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fedblocks as fb
from fedblocks.config.model import Config
from fedblocks.runs.federations import federation_of

ENGINES = ("sequential", "vectorised")
FULL = [list(range(25)), list(range(25, 60))]


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def federation(partition: list[list[int]]) -> fb.Federation:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4)).astype("float32")
    return fb.Federation.from_arrays(x, np.arange(60) % 2, partition, allow_empty=True)


def net() -> fb.Net:
    return fb.Net.of(lambda: nn.Linear(4, 2))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", [fb.FedAvg, fb.Ditto, fb.FedProx])
def test_a_client_without_rows_has_no_effect(kind: type[fb.Method], engine: str) -> None:
    with pytest.warns(UserWarning, match='1 client has no training rows: "client-2"'):
        run = fb.run(kind(net()), federation([*FULL, []]), rounds=2, engine=engine)
    other = fb.run(kind(net()), federation(FULL), rounds=2, engine=engine)
    server, wanted = run.state().server, other.state().server
    assert server.keys() == wanted.keys() and wanted
    for block, tensors in wanted.items():
        assert all(torch.equal(server[block][name], value) for name, value in tensors.items())


def test_its_control_variate_stays_as_it_was() -> None:
    with pytest.warns(UserWarning, match="no training rows"):
        run = fb.run(fb.Scaffold(net()), federation([*FULL, []]), rounds=2)
    private = run.state().private
    own = [value for tree in private[2].values() for value in tree.values()]
    assert own and not any(value.any() for value in own)
    assert any(value.any() for tree in private[0].values() for value in tree.values())


def test_a_saved_federation_may_have_such_clients_too() -> None:
    federation([*FULL, []]).save("data.npz")
    data = {"name": "saved", "options": {"path": "data.npz"}}
    config = Config.of({"rounds": 1, "data": data, "net": "mlp", "method": "fedavg"})
    assert federation_of(config).train.sizes[2] == 0


def test_somebody_has_to_have_training_rows() -> None:
    data = federation([[], []])
    with pytest.raises(fb.DataError, match=r"no training rows(.|\n)*where the federation is made"):
        fb.run(fb.FedAvg(net()), data, rounds=1)
