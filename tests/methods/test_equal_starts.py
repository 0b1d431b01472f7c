"""Slots that begin alike and would stay alike: the method is FedAvg then, and is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fedblocks as fb

X = torch.randn(400, 7, generator=torch.Generator().manual_seed(0))
WEIGHTS = torch.randn(7, 5, generator=torch.Generator().manual_seed(1))
USERS = torch.arange(400) % 8
LABELS = (X @ WEIGHTS).argmax(1)
# clients 4 to 7 have other names for the classes
DATA = fb.Federation.from_users(X, torch.where(USERS < 4, LABELS, (LABELS + 2) % 5), USERS)


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 16), nn.Tanh(), nn.Linear(16, 5))


def adapted() -> fb.Net:
    return fb.lora(module(), rank=3, alpha=5.0, targets=("0",), head="2")


def kept() -> fb.Net:
    return fb.Net.of(module(), keep_weights=True)


def run(method: fb.Method, out: Path, **options: Any) -> fb.RunResult:
    return fb.run(method, DATA, rounds=6, out=out, engine="sequential", **options)


def answers(result: fb.RunResult, method: fb.Method, client: int) -> torch.Tensor:
    return fb.personal(result, client, method, DATA).predict(X[:9])


@pytest.mark.parametrize("net", [adapted, kept], ids=["adapters", "kept weights"])
def test_ifca_is_refused_where_its_models_begin_alike(net: Any, tmp_path: Path) -> None:
    with pytest.raises(fb.UserError, match=r'makes IFCA FedAvg.* start = "updates" parts them'):
        run(fb.IFCA(net(), clusters=2), tmp_path / "run")
    # as it said: all clients have one model
    method = fb.IFCA(net(), clusters=2, lr=0.5, epochs=5)
    result = run(method, tmp_path / "meant", allow_degenerate=True)
    assert torch.equal(answers(result, method, 0), answers(result, method, 7))


@pytest.mark.parametrize("net", [adapted, kept], ids=["adapters", "kept weights"])
def test_the_start_from_updates_parts_the_clients(net: Any, tmp_path: Path) -> None:
    method = fb.IFCA(net(), clusters=2, start="updates", lr=0.5, epochs=5)
    result = run(method, tmp_path / "run")
    assert torch.equal(answers(result, method, 0), answers(result, method, 3))
    assert not torch.allclose(answers(result, method, 0), answers(result, method, 7), atol=0.1)


@pytest.mark.parametrize("kind", [fb.FedEM, fb.PFedMB])
def test_mixtures_of_equal_parts_are_refused(kind: Any, tmp_path: Path) -> None:
    with pytest.raises(fb.UserError, match=r"begin alike, as the net keeps its weights"):
        run(kind(kept()), tmp_path / "run")
    method = kind(kept(), lr=0.5, epochs=2)
    result = run(method, tmp_path / "meant", allow_degenerate=True)
    blocks = fb.personal(result, 0, method, DATA).blocks
    pools = {k: v for name, b in blocks.items() if name != "alpha" for k, v in b.items()}
    parts = {name: value for name, value in pools.items() if name.endswith(("weight", "bias"))}
    assert parts and all(torch.equal(value[0], value[1]) for value in parts.values())


@pytest.mark.parametrize("kind", [fb.FedEM, fb.PFedMB])
def test_mixtures_of_adapters_part_by_themselves(kind: Any, tmp_path: Path) -> None:
    method = kind(adapted(), lr=0.5, epochs=5)
    result = run(method, tmp_path / "run")
    assert not torch.allclose(answers(result, method, 0), answers(result, method, 7), atol=0.01)


def test_a_head_that_is_drawn_parts_the_models_of_ifca() -> None:
    make = lambda: nn.Sequential(nn.Linear(7, 16), nn.Linear(16, 5))
    assert fb.IFCA(fb.lora(make, targets="0", head="1", rank=2)).degenerate() == []
    assert fb.IFCA(fb.lora(make, targets="0", rank=2)).degenerate() != []
