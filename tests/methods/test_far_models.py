"""Distances between models that are far from zero and near each other are exact."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from fedblocks.methods.fedamp import FedAMP, HeurFedAMP


def test_the_attention_of_models_far_from_zero_is_that_of_their_differences() -> None:
    clients = 40  # torch takes a product of matrices for more than 25, which cancels digits
    steps = torch.arange(clients) / 8
    models = 4096 + steps[:, None].expand(clients, 4)
    method: Any = SimpleNamespace(relative=False, step_size=1.0, sigma=50.0)
    cohort: Any = SimpleNamespace(ids=torch.arange(clients))
    hidden = torch.eye(clients, dtype=torch.bool)
    actual = FedAMP.attention(method, models, cohort, hidden)
    apart = 4 * (steps[:, None] - steps).double().square()  # four numbers that differ alike
    wanted = (torch.exp(-apart / 50) / 50).masked_fill(hidden, 0)
    wanted = wanted / wanted.sum(1, keepdim=True).clamp(min=1)
    torch.testing.assert_close(actual.double(), wanted, rtol=1e-5, atol=1e-9)


def test_a_client_that_is_alone_attends_to_nobody() -> None:
    method: Any = SimpleNamespace(own_share=0.5, scale=1.0)
    cohort: Any = SimpleNamespace(ids=torch.arange(1), population=1)
    hidden = torch.ones(1, 1, dtype=torch.bool)
    assert HeurFedAMP.attention(method, torch.ones(1, 3), cohort, hidden).tolist() == [[0.0]]
    two: Any = SimpleNamespace(ids=torch.arange(2), population=2)
    others = HeurFedAMP.attention(method, torch.ones(2, 3), two, torch.eye(2, dtype=torch.bool))
    assert others.tolist() == [[0.0, 0.5], [0.5, 0.0]]
