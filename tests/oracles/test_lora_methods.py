"""Every method over adapters against its algorithm box, in float64, on layers none of which is
square.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import fedblocks as fb
from fedblocks.core.method import Method
from fedblocks.core.optimizers import SGD

from . import lora
from .harness import BATCH, ENGINES, SEED, agrees, mlp, task_of
from .lora import Setting
from .plain import Descent, Outcome

RANK, ALPHA = 3, 7.0


def adapted() -> fb.LoraNet:
    torch.manual_seed(11)
    return fb.lora(mlp(), RANK, ALPHA, targets=("0", "2"), head="4", dtype=torch.float64)


CASES: dict[str, tuple[type[Method], dict[str, str], Callable[[Setting], Outcome]]] = {
    "fedavg_lora": (fb.FedAvgLoRA, {"head": "shared"}, lora.fedavg),
    "ffa_lora": (fb.FFALoRA, {"head": "shared"}, lora.ffa),
    "rolora": (fb.FFALoRA, {"head": "shared", "turns": "alternate"}, lora.rolora),
    "fedsa_lora": (fb.FedSALoRA, {"head": "private"}, lora.fedsa),
    "product svd": (fb.ProductLoRA, {"head": "shared"}, lambda s: lora.product(s, "svd")),
    "product stack": (
        fb.ProductLoRA,
        {"head": "shared", "keep": "stack"},
        lambda s: lora.product(s, "stack"),
    ),
    "product residual": (
        fb.ProductLoRA,
        {"head": "shared", "keep": "residual"},
        lambda s: lora.product(s, "residual"),
    ),
    "dual_lora": (fb.DualLoRA, {"head": "private"}, lora.dual),
    "rest": (fb.DualLoRA, {"head": "private", "other": "rest"}, lora.rest),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", CASES)
def test_two_rounds_are_those_of_the_paper(name: str, engine: str) -> None:
    kind, options, oracle = CASES[name]
    optimizer = SGD(momentum=0.9)
    method = kind(net=adapted(), lr=0.1, epochs=2, batch_size=BATCH, optimizer=optimizer, **options)
    setting = Setting(task_of(method, slots=1), Descent(0.1, 0.9), ALPHA / RANK, SEED)
    agrees(method, oracle(setting), ENGINES[engine])
