"""Nets with sparse gradients, tensors without elements, and layers that share all their tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedblocks as fb
from fedblocks.methods import METHODS

RNG = np.random.default_rng(0)
WORDS = fb.Federation.from_users(
    RNG.integers(0, 11, (90, 5)), RNG.integers(0, 3, 90), np.arange(90) % 3
)
POINTS = fb.Federation.from_users(
    RNG.normal(size=(90, 6)).astype("float32"), RNG.integers(0, 3, 90), np.arange(90) % 3
)


class Words(nn.Module):
    def __init__(self, sparse: bool, functional: bool = False) -> None:
        super().__init__()
        self.sparse, self.functional = sparse, functional
        self.table, self.out = nn.Embedding(11, 4, sparse=sparse), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        rows = (
            F.embedding(x, self.table.weight, sparse=self.sparse)
            if self.functional
            else self.table(x)
        )
        return self.out(rows.mean(1))  # type: ignore[no-any-return]


def model(method: fb.Method, data: fb.Federation, out: Path, engine: str) -> list[Tensor]:
    state = fb.run(method, data, 2, out, engine=engine, seed=1).state()  # type: ignore[arg-type]
    server = [value for block in state.server.values() for value in block.values()]
    return server + [v for own in state.private.values() for b in own.values() for v in b.values()]


SOME = [  # with pulls, pools, mixtures of tensors, and sums over clients
    *("fedprox", "ditto", "fedem", "pfedmb", "pfedme"),
    *("mean_reg_mtl", "fedmn", "fedamp", "heur_fedamp", "fedala"),
]


@pytest.mark.parametrize("name", SOME)
def test_a_sparse_embedding_trains_as_a_dense_one(name: str, tmp_path: Path) -> None:
    ends = [
        model(
            METHODS[name](fb.Net.of(lambda sparse=sparse: Words(sparse)), lr=0.1),
            WORDS,
            tmp_path / str(sparse),
            "sequential",
        )
        for sparse in (True, False)
    ]
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
@pytest.mark.parametrize("functional", [False, True])
def test_sparse_gradients_are_those_of_plain_pytorch_with_any_optimizer(
    functional: bool, engine: str, tmp_path: Path
) -> None:
    ends = []
    for sparse in (True, False):
        net = fb.Net.of(lambda sparse=sparse: Words(sparse, functional))
        method = fb.FedAvg(net, lr=0.1, optimizer=fb.Adam(), clip_norm=1.0)
        ends.append(model(method, WORDS, tmp_path / str(sparse), engine))
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def test_a_sparse_bag_trains_with_a_pull(tmp_path: Path) -> None:
    make = lambda sparse: nn.Sequential(nn.EmbeddingBag(11, 4, sparse=sparse), nn.Linear(4, 3))
    ends = [
        model(
            fb.FedProx(fb.Net.of(lambda sparse=sparse: make(sparse)), lr=0.1),
            WORDS,
            tmp_path / str(sparse),
            "sequential",
        )
        for sparse in (True, False)
    ]
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
        self.b.weight = self.a.weight
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.b(self.a(x).tanh()).tanh())  # type: ignore[no-any-return]


def test_layers_that_share_their_weight_have_branches_together(tmp_path: Path) -> None:
    method = fb.PFedMB(fb.Net.of(Tied), lr=0.1)
    assert [*method.layers] == ["layers.a", "layers.out"]
    assert fb.run(method, POINTS, 1, tmp_path / "run").status == "finished"
    with pytest.raises(fb.NetError, match='no linear layer "b"'):
        fb.PFedMB(fb.Net.of(Tied), lr=0.1, branched=("b",))


class WithNothing(nn.Module):
    """One of its parameters has no elements."""

    def __init__(self) -> None:
        super().__init__()
        self.inp, self.out = nn.Linear(6, 8), nn.Linear(8, 3)
        self.nothing = nn.Parameter(torch.zeros(0))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.inp(x).relu()) + self.nothing.sum()  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", [fb.PFedHN, fb.FedAvg, fb.PFedMB, fb.FedAMP])
def test_a_parameter_without_elements_is_no_trouble(kind: Any, tmp_path: Path) -> None:
    run = fb.run(kind(fb.Net.of(WithNothing), lr=0.1), POINTS, 1, tmp_path / "run")
    assert run.status == "finished" and not run.refused().updates
