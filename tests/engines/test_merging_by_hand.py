"""Adapters and their merged weights: what is tried, and which difference is still rounding."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedblocks as fb
from fedblocks.core.lora import LoraNet
from fedblocks.engines.net_check import merging


def rms(values: Tensor) -> float:
    return float(values.square().mean().sqrt())


def adapted(scale: float) -> LoraNet:
    """Adapters on two layers, whose weights are a `scale`, half of them negative."""

    def make() -> nn.Module:
        layers = (nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2))
        module = nn.Sequential(*layers)
        for layer in (module[0], module[2]):
            signs = torch.ones(layer.weight.shape)  # type: ignore[arg-type]
            signs[:, ::2] = -1
            layer.weight = nn.Parameter(scale * signs)
        return module

    return fb.lora(make, rank=2, targets=["0", "2"], head="4", dtype=torch.float64)


@pytest.mark.parametrize(
    ("scale", "size"), [(0.5, 0.15), (2.0, 0.6), (0.0, 0.003)]
)  # 0.3 of the weights, which count as 0.01 at least
def test_a_change_that_is_tried_is_a_share_of_its_layers_weights(scale: float, size: float) -> None:
    net = adapted(scale)
    factors = merging._factors(net, net.init(0), ["2"])
    changes = net.changes(factors)
    assert rms(changes["2"]) == pytest.approx(size)
    assert rms(changes["0"]) == 0.0
    assert all(value.dtype == torch.float64 for value in factors.values())
    both = net.changes(merging._factors(net, net.init(0), ["0", "2"]))
    assert rms(both["0"]) == pytest.approx(size)


class Answers:
    """A net whose outputs are given: without a change, with adapters, and with merged weights."""

    adapters = SimpleNamespace(names=["a"])
    base: dict[str, Tensor] = {"w": torch.zeros(1)}  # noqa: RUF012

    def __init__(self, plain: list[float], ours: list[float], theirs: list[float]) -> None:
        self.answers = {"plain": plain, "ours": ours, "theirs": theirs}

    def init(self, seed: int) -> dict[str, Tensor]:
        return {"a": torch.zeros(1)}

    def merge(self, params: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"w": params["a"], "head": torch.zeros(1)}

    def __call__(self, params: dict[str, Tensor], x: Tensor) -> Tensor:
        adapters = float(params["a"]) != 0
        merged = "w" in params
        assert not (adapters and merged) and "head" not in params
        name = "theirs" if merged else "ours" if adapters else "plain"
        return torch.tensor(self.answers[name])


# 1e-4 of (1 + 3) and 0.01 of a change by 5 are 0.0504; by 1, 0.0104
@pytest.mark.parametrize(
    ("plain", "ours", "theirs", "differ"),
    [
        ([0.0, 2.0], [0.0, -3.050], [0.0, -3.0], False),
        ([0.0, 2.0], [0.0, -3.051], [0.0, -3.0], True),
        ([0.0, 2.0], [0.0, -2.949], [0.0, -3.0], True),
        ([0.0, 2.0], [0.0, -2.950], [0.0, -3.0], False),
        ([0.0, 2.0], [0.0, 3.012], [0.0, 3.0], True),
        ([0.0, 2.0], [0.0, 3.010], [0.0, 3.0], False),
        ([0.0, 2.0], [0.0, float("nan")], [0.0, 3.0], False),
        ([0.0, 2.0], [0.0, 9.0], [0.0, float("inf")], False),
    ],
)
def test_a_difference_counts_beyond_a_share_of_outputs_and_of_their_change(
    plain: list[float],
    ours: list[float],
    theirs: list[float],
    differ: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(merging, "_factors", lambda net, start, paths: {"a": torch.ones(1)})
    net: Any = Answers(plain, ours, theirs)
    assert merging._differ(net, torch.zeros(2, 1), ["a"]) is differ


def test_what_is_tried_is_the_same_each_time_and_draws_nothing_from_others() -> None:
    net, before = adapted(0.5), torch.get_rng_state()
    first, again = (merging._factors(net, net.init(0), ["2"]) for _ in range(2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert torch.equal(torch.get_rng_state(), before)


def test_statistics_that_a_pass_moves_are_those_of_copies() -> None:
    """Whoever comes second would see what the first left."""
    mean = torch.zeros(1)

    def net(params: dict[str, Tensor], x: Tensor) -> Tensor:
        return params["bn.running_mean"].add_(1).clone()

    variants = [{"bn.running_mean": mean}] * 3
    assert not merging._have_other_effects(net, torch.zeros(1), variants, True)  # type: ignore[arg-type]
    assert mean.item() == 0
