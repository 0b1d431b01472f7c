"""Functions that make a module in a way that no run can use are told so, in their own words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedblocks as fb
from fedblocks.engines.net_check.check import check_before_run


class Wide(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, hidden), nn.Linear(hidden, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.body(x)))


class Assisted(Wide):
    """Has a second output in training."""

    def forward(self, x: Tensor) -> Any:
        logits = super().forward(x)
        return (logits, 2 * logits) if self.training else logits


class InDouble(Wide):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.double())


class AsksByName(Wide):
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x)) @ self.get_parameter("head.weight").t()


class Freezes(Wide):
    def forward(self, x: Tensor) -> Tensor:
        self.body.weight.requires_grad_(False)
        return super().forward(x)


def rows() -> fb.Federation:
    x = np.random.default_rng(0).normal(size=(80, 3)).astype("float32")
    return fb.Federation.from_users(x, (x[:, 0] > 0).astype(int), np.arange(80) % 4)


def run(net: fb.Net, out: Path) -> fb.Result:
    return fb.run(fb.FedAvg(net, batch_size=8), rows(), rounds=1, out=out)


@pytest.mark.parametrize(
    ("make", "said", "fix"),
    [
        (Wide, r"Wide\(hidden.*\) cannot be called without arguments", "lambda: Wide(...)"),
        (lambda x: x, r"<lambda>\(x\) cannot be called without", "lambda: MyNet(...)"),
    ],
)
def test_a_function_that_needs_arguments_is_named(make: Any, said: str, fix: str) -> None:
    with pytest.raises(fb.UserError, match=said) as error:
        fb.Net.of(make)
    assert fix in error.value.fix


def test_a_function_that_hands_out_one_module_is_named_as_the_cause(tmp_path: Path) -> None:
    module = Wide(4)
    with pytest.raises(fb.UserError, match="returns the same module each time") as error:
        run(fb.Net.of(lambda: module), tmp_path / "run")
    assert "Net.of(lambda: MyNet())" in error.value.fix


def test_a_place_in_a_tuple_fits_a_module_with_a_tuple_in_training_only(tmp_path: Path) -> None:
    net = fb.Net.of(lambda: Assisted(4), head="head", output=0)
    assert run(net, tmp_path / "run").status == "finished"


def test_two_types_of_numbers_in_a_net_are_told_from_a_wrong_shape(tmp_path: Path) -> None:
    with pytest.raises(fb.UserError, match="same dtype") as error:
        run(fb.Net.of(lambda: InDouble(4)), tmp_path / "run")
    assert "dtype=torch.float64" in error.value.fix and "shape" not in error.value.fix


@pytest.mark.parametrize(
    ("kind", "said", "fix"),
    [
        (AsksByName, "calls get_parameter, which plain PyTorch can", "self.layer.weight"),
        (Freezes, "freezes a parameter .*, which plain PyTorch can", "detach()"),
    ],
)
def test_what_works_in_plain_pytorch_alone_is_told_as_a_limit_here(
    kind: type[Wide], said: str, fix: str
) -> None:
    assert kind(4)(torch.zeros(1, 3)).requires_grad  # it does work there
    with pytest.raises(fb.UserError, match=said) as error:
        check_before_run(fb.Net.of(lambda: kind(4), head="head"), torch.randn(9, 3), mapped=False)
    assert fix in error.value.fix


def test_rows_of_some_clients_are_taken_by_a_slice() -> None:
    train = rows().train
    assert [list(own) for own in train[1:3]] == [list(train[1]), list(train[2])]
    assert len(train[:0]) == 0
