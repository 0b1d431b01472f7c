"""Small ends of the core, each by a case that can be computed by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedblocks as fb
from fedblocks.core.task import Task


class TwoAnswers(nn.Module):
    """Logits, and beside them something that nobody asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 5), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.body(x).tanh()
        return hidden, self.head(hidden)


def test_adapters_keep_which_output_of_a_net_are_the_logits() -> None:
    torch.manual_seed(0)
    module, x = TwoAnswers(), torch.randn(3, 6)
    plain = fb.Net.of(module, head="head", output=1)
    net = fb.lora(plain, rank=2)
    assert net(net.init(0), x).shape == (3, 4)
    assert torch.allclose(net(net.init(0), x), module(x)[1], atol=1e-6)


def test_weights_of_classes_are_kept_as_a_tuple_of_floats() -> None:
    task = Task("classification", class_weights=[1, 2])  # type: ignore[arg-type]
    assert task.class_weights == (1.0, 2.0) and isinstance(task.class_weights[0], float)
    assert hash(task) == hash(Task("classification", class_weights=(1.0, 2.0)))


def test_the_client_that_a_sampler_chose_twice_is_named() -> None:
    """It is not the first of its answer."""
    choose: Any = lambda candidates: [2, 1, 3, 1]
    data = fb.small_federation(dtype=torch.float32)
    method = fb.FedAvg(fb.Net.of(lambda: nn.Linear(6, 4)), lr=0.1)
    with pytest.raises(fb.UserError, match="chose client 1 twice"):
        fb.run(method, data, 1, None, sampler=choose)
