"""What a method says of itself where that depends on its options."""

from __future__ import annotations

from typing import Any

import pytest

from fedblocks.core.method import Method
from fedblocks.methods.lora.adapted import DOWN, UP
from fedblocks.methods.lora.fedavg_lora import FedAvgLoRA
from fedblocks.methods.lora.ffa_lora import FFALoRA
from fedblocks.methods.lora.product_lora import DELTA, ProductLoRA
from fedblocks.methods.modfl import TAG, ModFL
from fedblocks.methods.pfedmb.method import PFedMB
from fedblocks.testing.adapters import adapted_net
from fedblocks.testing.federations import small_net

SIZE = "|s B A|"


@pytest.mark.parametrize(
    ("kind", "options", "what", "usually", "exactly"),
    [
        (FedAvgLoRA, {"weight": "samples"}, "weight_label", "n", {}),
        (FedAvgLoRA, {"weight": "norm"}, "weight_label", "n", {DOWN: SIZE, UP: SIZE}),
        (FFALoRA, {"turns": "B"}, "weight_label", "n", {}),
        (
            FFALoRA, {"turns": "alternate"}, "weight_label", "n",
            {DOWN: "n, every second round", UP: "n, in between"},
        ),
        (ProductLoRA, {}, "weight_label", "n", {DELTA: "nothing"}),
        (PFedMB, {"averaging": "alpha"}, "weight_label", "n x alpha", "n x alpha"),
        (PFedMB, {"averaging": "plain"}, "weight_label", "n x alpha", "n"),
        (ModFL, {"cohorts": "given"}, "tags", (TAG,), (TAG,)),
        (ModFL, {"cohorts": "found"}, "tags", (TAG,), ()),
    ],
)  # fmt: skip
def test_a_label_is_that_of_the_options(
    kind: type[Method], options: dict[str, Any], what: str, usually: Any, exactly: Any
) -> None:
    adapted: dict[str, Any] = {"net": adapted_net(), "head": "shared"}
    made = kind(**(adapted if "LoRA" in kind.__name__ else {"net": small_net()}), **options)
    assert getattr(kind, what) == usually and getattr(made, what) == exactly
