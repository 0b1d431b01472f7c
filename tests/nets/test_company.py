"""A run looks whether a net of torch's layers answers each example by itself, and keeps it from
stacks of clients where it does not. (Every layer, and what a stack makes of it, is in
test_torch_layers.py.)
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedblocks as fb
from fedblocks.engines.net_check import company
from fedblocks.engines.net_check.check import check_before_run
from tests.nets.torch_layers import MIXING, ROWS_OF_TABLE, examples_of, net_of


@pytest.fixture(autouse=True)
def quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about a dimension that nobody named
        yield


def is_stacked(net: fb.Net, x: Tensor) -> bool:
    check_before_run(net, x, mapped=False)
    return not net.unmappable


@pytest.mark.parametrize("name", ROWS_OF_TABLE)
def test_a_run_knows_which_layers_mix_examples(name: str) -> None:
    net = fb.Net.of(lambda: net_of(name))
    assert is_stacked(net, examples_of(name, 21)) == (name not in MIXING)


def encoder() -> nn.Module:
    """The batch is in the second place, so that attention goes over the examples."""
    layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0)
    return nn.Sequential(layer, nn.Flatten(), nn.Linear(24, 3))


def unequal_clients() -> fb.Federation:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 4, 6)), rng.integers(0, 3, 60)
    return fb.Federation.from_users(x, y, [0] * 5 + [1] * 15 + [2] * 40)


def test_a_run_does_not_stack_a_net_that_mixes_examples() -> None:
    net, data = fb.Net.of(encoder), unequal_clients()
    with pytest.warns(UserWarning, match="depends on those beside it"):
        run = fb.run(fb.FedAvg(net, batch_size=8), data, rounds=1)
    assert any(note["text"].startswith("engine sequential") for note in run.notes)
    with pytest.raises(fb.NetError, match=r'beside it(.|\n)*engine = "sequential"'):
        fb.run(fb.FedAvg(fb.Net.of(encoder)), data, rounds=1, engine="vectorised")


def with_zeros() -> nn.Module:
    module = encoder()
    nn.init.zeros_(module[2].weight)  # type: ignore[arg-type, index]
    return module


def large() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 200_000), nn.Softmax(-2), nn.Linear(200_000, 3))


@pytest.mark.parametrize(
    ("make", "x"),
    [
        pytest.param(with_zeros, torch.zeros(21, 4, 6), id="weights of zeros, and rows alike"),
        pytest.param(large, torch.zeros(21, 6), id="more than a million parameters"),
        pytest.param(
            lambda: nn.Sequential(nn.Embedding(9, 4), nn.Softmax(0), nn.Flatten(), nn.Linear(8, 3)),
            torch.full((21, 2), 5),
            id="the same token everywhere",
        ),
    ],
)
def test_that_examples_are_mixed_is_seen_also_where_data_or_weights_hide_it(
    make: Callable[[], nn.Module], x: Tensor
) -> None:
    assert not is_stacked(fb.Net.of(make), x)


def test_a_net_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    company._found.clear()
    seen: list[fb.Net] = []
    why = company._why
    monkeypatch.setattr(company, "_why", lambda net, x: seen.append(net) or why(net, x))
    x = torch.randn(21, 4, 6)
    first, again = fb.Net.of(encoder), fb.Net.of(encoder)
    begun = time.process_time()
    assert [is_stacked(net, x) for net in (first, again)] == [False, False]
    assert seen == [first] and time.process_time() - begun < 1
    plain = fb.Net.of(lambda: nn.Sequential(nn.Flatten(), nn.Linear(24, 3), nn.ReLU()))
    assert is_stacked(plain, x) and seen == [first]  # known layers need no forward pass
