"""Examples of methods over adapters: a perceptron 6-5-4 whose first layer has an adapter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from fedblocks.core.lora import LoraNet, lora
from fedblocks.methods.lora.adapted import DOWN, HEAD, UP
from fedblocks.methods.lora.dual_lora import DualLoRA
from fedblocks.methods.lora.fedavg_lora import FedAvgLoRA
from fedblocks.methods.lora.fedsa_lora import FedSALoRA
from fedblocks.methods.lora.ffa_lora import FFALoRA
from fedblocks.methods.lora.product_lora import ProductLoRA
from fedblocks.testing.example import Alone, Reduction
from fedblocks.testing.federations import CLASSES, FEATURES
from fedblocks.testing.making import Examples, is_fedavg, ours


def adapted_net(head: str | None = "2") -> LoraNet:
    """The small net with an adapter of rank 2 beside its first layer, and a head."""

    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, CLASSES))

    return lora(make, rank=2, alpha=4.0, targets="0", head=head, dtype=torch.float64)


_NET = adapted_net()
_ALONE = Alone((DOWN, UP, HEAD))
# from B = 0 the first step leaves A where it is, so that everybody takes two at least
_USUAL: dict[str, Any] = {"net": _NET, "epochs": 2}
_NO_HEAD: dict[str, Any] = {"net": adapted_net(head=None), "head": None}

ADAPTERS: Examples = {
    "fedavg_lora": ours(
        "fedavg_lora",
        FedAvgLoRA,
        is_fedavg("all that trains", dict.fromkeys((DOWN, UP, HEAD), "model")),
        _ALONE,
        head="shared",
        others={"head": "private", "ranks": (1, 2), "weight": "norm"},
        **_USUAL,
    ),
    "ffa_lora": ours(
        "ffa_lora",
        FFALoRA,
        head="shared",
        others={"head": "private", "turns": "alternate"},
        exceptions={"reductions": "with a rotation of full rank for A it is FedAvg of the weights"},
        **_USUAL,
    ),
    "fedsa_lora": ours(
        "fedsa_lora",
        FedSALoRA,
        _ALONE,
        head="private",
        others={"head": "shared", "share": "B"},
        **_USUAL,
    ),
    "product_lora": ours(
        "product_lora",
        ProductLoRA,
        replace(_ALONE, options={"keep": "residual"}),
        head="shared",
        others={"head": "private", "ranks": (1, 2), "keep": "residual"},
        **_USUAL,
    ),
    "dual_lora": ours(
        "dual_lora",
        DualLoRA,
        Reduction(
            "what is averaged is FedAvg's",
            FedAvgLoRA,
            {DOWN: DOWN, UP: UP},
            {"order": "final", **_NO_HEAD},
            _NO_HEAD,
        ),
        head="private",
        others={"head": "shared", "other": "rest", "order": "final"},
        **_USUAL,
    ),
}
