"""Nets of torch's layers alone are trained in a stack of clients only where that changes nothing:
no layer looks at the examples beside one's own, which are padding there.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedblocks as fb
from fedblocks.core.fields import Fields
from fedblocks.engines.net_check.check import check_before_run
from fedblocks.engines.net_check.trial import NetTrial
from tests.nets.torch_layers import LEFT_OUT, ROWS_OF_TABLE, SEVERAL, examples_of, net_of

EXACT = 1e-8  # in double precision
# an example changes those behind it; padding stands behind all, which is luck, and not used
LATER = (
    "each example moved on by one",
    "LSTM, batch second",
    "GRU, batch second",
    "RNN, batch second",
)


@pytest.fixture(autouse=True)
def quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about a dimension that nobody named
        yield


def distance_in_a_stack(net: fb.Net, x: Tensor) -> float:
    """How far the tensors and losses of a stack are from those of plain PyTorch; infinite: it
    fails, alone or there.
    """
    try:
        trial = NetTrial.of(net, x, None)
        pairs = zip(trial.train("vectorised"), trial.wanted(), strict=True)
        far = [abs(a[name] - b[name]).max().item() for a, b in pairs for name in a]
        losses = zip(trial.losses("vectorised"), trial.wanted_losses(), strict=True)
        return max(*far, *(abs(a - b) for a, b in losses))
    except Exception:
        return np.inf


def is_stacked(net: fb.Net, x: Tensor) -> bool:
    check_before_run(net, x, mapped=False)
    return not net.unmappable


@pytest.mark.parametrize("name", ROWS_OF_TABLE)
def test_a_net_of_torchs_layers_is_stacked_where_that_is_plain_pytorch_and_only_there(
    name: str,
) -> None:
    net, x = fb.Net.of(lambda: net_of(name)), examples_of(name, 21)
    is_right = distance_in_a_stack(net, x) < EXACT
    assert is_stacked(net, x) == (is_right and name not in LATER)


@pytest.mark.parametrize("name", SEVERAL)
def test_a_layer_of_several_inputs_is_stacked_where_that_is_plain_pytorch(name: str) -> None:
    count, shape, output, make = SEVERAL[name]
    draw = torch.Generator().manual_seed(0)
    inputs = tuple(torch.randn((21, *shape), generator=draw) for _ in range(count))
    fields = Fields.of(inputs) if count > 1 else None
    x = inputs[0] if fields is None else fields.pack(inputs)
    net = fb.Net.of(make, inputs=fields, output=output)
    is_right = distance_in_a_stack(net, x) < EXACT
    assert is_stacked(net, x) == (is_right and name not in LATER)


def test_every_layer_of_torch_is_tried_or_left_out_for_a_reason() -> None:
    tried = [part for name in ROWS_OF_TABLE for part in net_of(name).modules()]
    tried += [part for _, _, _, make in SEVERAL.values() for part in make().modules()]
    kinds = {name for name, kind in vars(nn).items() if inspect.isclass(kind)}
    kinds = {name for name in kinds if issubclass(getattr(nn, name), nn.Module)}
    kinds = {name for name in kinds if not re.search("Loss|^Lazy|Parallel$", name)}
    assert kinds - LEFT_OUT <= {type(part).__name__ for part in tried}
    assert kinds >= LEFT_OUT
