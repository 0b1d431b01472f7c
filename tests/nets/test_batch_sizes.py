"""A net whose answers depend on how many examples stand together is not stacked: a stack pads
batches, and padding would count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedblocks as fb
from fedblocks.data.rows import Rows
from fedblocks.engines.net_check import sizes
from fedblocks.engines.net_check.sizes import Batches, some_sizes, unlike_in_sizes
from fedblocks.engines.round import Experiment
from fedblocks.runs.batches import batches_of, sizes_of_run

Change = Callable[[Tensor, bool], Tensor]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


class Changed(nn.Module):
    """Two layers, between which somebody changes the features of a batch."""

    def __init__(self, change: Change) -> None:
        super().__init__()
        self.change = change
        self.a, self.o = nn.Linear(6, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.o(self.change(torch.tanh(self.a(x)), self.training))


def net_of(change: Change) -> fb.Net:
    return fb.Net.of(lambda: Changed(change))


def centred(h: Tensor) -> Tensor:
    return h - h.mean(0)


def by_capacity(h: Tensor, training: bool) -> Tensor:
    """Experts of a layer take as many of a batch as their share, and no more."""
    turn = torch.cumsum(h > 0, 0)
    return h * (turn <= 1 + len(h) // 4)


COUPLED = {
    "training, many rows": lambda h, t: centred(h) if t and len(h) >= 10 else h,
    "more than 16": lambda h, t: centred(h) if len(h) > 16 else h,
    "evaluation alone": lambda h, t: h if t or len(h) < 20 else centred(h),
    "a few rows": lambda h, t: centred(h) if t and 4 < len(h) < 7 else h,
    "by ever so little": lambda h, t: h - 1e-6 * h.mean(0) if t and len(h) >= 10 else h,
    "detached": lambda h, t: h - h.detach().mean(0) if t and len(h) >= 10 else h,
    "quantiles": lambda h, t: h.clamp(max=h.quantile(0.95).item()) if len(h) >= 20 else h,
    "capacity": by_capacity,
    "noise by columns": lambda h, t: h + torch.randn(4, len(h)).T if t and len(h) > 10 else h,
}


@pytest.mark.parametrize("name", COUPLED)
def test_a_check_finds_what_couples_examples_in_batches_of_some_sizes(name: str) -> None:
    report = fb.check_net(net_of(COUPLED[name]), torch.randn(40, 6))
    assert report.engines == ("sequential",)


def unequal(rows: int = 20, **more: Any) -> fb.Federation:
    """20 clients with 14 training rows of 20, so that there are batches of 12 and of 2."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20 * rows, 6)).astype("float32"), rng.integers(0, 3, 20 * rows)
    return fb.Federation.from_users(x, y, np.repeat(np.arange(20), rows), **more)


def test_a_run_keeps_a_net_from_stacks_that_mixes_large_batches_in_training(tmp_path: Path) -> None:
    change = COUPLED["training, many rows"]
    ends = {}
    for engine in ("sequential", "auto"):
        method = fb.FedAvg(net_of(change), lr=0.5, batch_size=12)
        with pytest.warns(UserWarning, match=r"depends on those beside it \(in training"):
            run = fb.run(method, unequal(), rounds=2, engine=engine, out=tmp_path / engine)
        ends[engine] = run.state().server["model"]
    for name, value in ends["sequential"].items():
        assert torch.equal(value, ends["auto"][name])
    with pytest.raises(fb.NetError, match='use engine = "sequential"'):
        fb.run(replace(method, net=net_of(change)), unequal(), rounds=1, engine="vectorised")


def test_a_run_asks_batches_as_large_as_its_own_with_its_own_rows(tmp_path: Path) -> None:
    """The coupling begins at 40 rows, and only where a number is as large as the data's."""

    def change(x: Tensor) -> Tensor:
        return x - x.mean(0) * (x.abs().max() > 50) if len(x) >= 40 else x

    class Scaled(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(change(x))

    net = fb.Net.of(lambda: Scaled(nn.Linear(6, 3)))
    assert fb.check_net(net, torch.randn(64, 6)).engines == ("sequential", "vectorised")
    rng = np.random.default_rng(0)
    x, y = 40 * rng.normal(size=(120, 6)).astype("float32"), rng.integers(0, 3, 120)
    data = fb.Federation.from_users(x, y, np.repeat([0, 1], 60))
    experiment = Experiment.of(fb.FedAvg(net, batch_size=40), data, 0)
    batches = batches_of(experiment, "all")
    assert batches.trained == (2, 40) and batches.x.shape == (42, 6)
    assert "batches of 2 and 40" in unlike_in_sizes(net, batches)
    assert unlike_in_sizes(net, batches._replace(x=batches.x / 40)) == ""


class Block(nn.Module):
    """Norms and noise; `mixes` in batches of more than 30 in training, or in evaluation."""

    tracked = True

    def __init__(self, mixes: bool | None = None) -> None:
        super().__init__()
        self.mixes = mixes
        self.a, self.n = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.b, self.m = nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8, track_running_stats=self.tracked)
        self.o, self.drop = nn.Linear(8, 4), nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        h = F.dropout2d(torch.relu(self.n(self.a(x))), 0.2, self.training)
        h = torch.relu(self.m(self.b(h)))
        if self.training:
            h = h + torch.randn_like(h)
        h = self.o(self.drop(h.mean((2, 3))))
        return h - h.mean(0) if self.training == self.mixes and len(x) > 30 else h


class Untracked(Block):
    tracked = False


class Wide(Block):
    """More parameters than are tried in double precision at once."""

    def __init__(self, mixes: bool | None = None) -> None:
        super().__init__(mixes)
        self.o = nn.Sequential(nn.Linear(8, 100_000), nn.ReLU(), nn.Linear(100_000, 4))


class Single(Block):
    """Rounds its numbers, whatever those of its tensors are."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return super().forward((x.half() * 0.1).to(self.a.weight.dtype)).float() * 3


@pytest.mark.parametrize("make", [Block, Untracked, Wide, Single])
@pytest.mark.parametrize("scale", [1.0, 255.0])
def test_norms_and_noise_are_alike_in_batches_of_all_sizes(make: type[Block], scale: float) -> None:
    x = scale * torch.rand(64, 3, 8, 8)
    x[:, 0] = scale  # a channel that does not vary
    asked = Batches.of(x, (1, 2, 7, 64), (3, 64))
    assert unlike_in_sizes(fb.Net.of(make), asked) == ""
    for training, where in ((True, "training"), (False, "evaluation")):
        mixing = fb.Net.of(partial(make, training))
        assert f"in {where}, batches of" in unlike_in_sizes(mixing, asked)


def test_a_costly_net_is_tried_with_fewer_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def noting(h: Tensor, training: bool) -> Tensor:
        seen.append(len(h))
        return h

    asked = Batches.of(torch.randn(64, 6), (2, 7, 64), (64,))
    assert asked.evaluated == (1, 64)
    net = net_of(noting)
    assert asked.examples(net) == 2 + 7 + 64 + 1 + 64  # one pass of the largest for all
    work = sizes._effort_of(net, asked.x[:2]).done / 2
    assert work > 2 * (6 * 4 + 4 * 3)  # products and sums of both layers, and what is written
    seen.clear()
    monkeypatch.setattr(sizes, "WORK", 24 * work)
    monkeypatch.setattr(sizes, "WORK_IN_DOUBLE", 0.0)
    assert unlike_in_sizes(net, asked) == ""
    assert seen == [2, 10, 2, 10, 1]  # to count, then in training and in evaluation


def test_of_many_sizes_the_least_the_largest_and_some_between_are_tried() -> None:
    assert some_sizes([5, 1, 5]) == (1, 5)
    assert some_sizes(range(1, 12)) == (1, 3, 5, 7, 9, 11)


def test_batches_are_as_large_as_clients_and_evaluations_make_them() -> None:
    data = unequal()
    method = fb.FedAvg(fb.Net.of(lambda: nn.Linear(6, 3)), batch_size=12)
    of = lambda method: Experiment.of(method, data, 0)
    assert data.train.sizes.max() == 14
    assert batches_of(of(method), "all").trained == (2, 12)
    assert batches_of(of(method), "all").evaluated == (1, 2, 4, 12, 14)
    dropping = fb.FedAvg(method.net, batch_size=12, drop_last=True)
    assert batches_of(of(dropping), "all").trained == (12,)
    assert sizes_of_run(of(method)) == {2, 4, 12, 14}
    large = fb.FedAvg(method.net, batch_size=5000)
    nobody = replace(data, train=Rows.none(20), test=data.train)
    assert batches_of(Experiment.of(large, nobody, 0), "all").trained == (2, 5, 16, 32, 512)
