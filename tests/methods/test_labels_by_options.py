"""What a method says of itself where that depends on its options."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from torch import Tensor

from fedblocks.core.client import Client
from fedblocks.core.method import Method
from fedblocks.core.parts import Blocks
from fedblocks.core.plan import plan
from fedblocks.methods._common.clustering import complete_linkage
from fedblocks.methods.fedper import FedPer
from fedblocks.methods.lora.adapted import DOWN, UP
from fedblocks.methods.lora.fedavg_lora import FedAvgLoRA
from fedblocks.methods.lora.ffa_lora import FFALoRA
from fedblocks.methods.lora.product_lora import DELTA, ProductLoRA
from fedblocks.methods.modfl import TAG, ModFL
from fedblocks.methods.pfedmb.method import PFedMB
from fedblocks.methods.scaffold import Scaffold
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
        (Scaffold, {"weigh_by": "examples"}, "weight_label", "n", "n"),
        (Scaffold, {"weigh_by": "clients"}, "weight_label", "n", {"model": "1", "control": "1"}),
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


@pytest.mark.parametrize(
    ("options", "start"),
    [
        ({"alpha_param": "softmax"}, [[0.0] * 4] * 2),
        ({"alpha_param": "projection"}, [[0.25] * 4] * 2),
        ({"alpha_param": "projection", "alpha_scope": "model"}, [[0.25] * 4]),
    ],
)
def test_branches_begin_with_the_same_weight(options: Any, start: list[list[float]]) -> None:
    made = PFedMB(small_net(), branches=4, **options)
    part: Any = made.blocks()["alpha"].part
    assert part.init(0)["value"].tolist() == start
    assert all(
        alpha.tolist() == [0.25] * 4 for alpha in made.alpha({"alpha": part.init(0)}).values()
    )


def test_nobody_is_in_no_group() -> None:
    assert complete_linkage(np.zeros((0, 0)), 2).tolist() == []
    assert complete_linkage(np.ones((1, 1)), 1).tolist() == [0]


class Weighs(FedPer):
    """Weighs its uploads and does not say how."""

    def writes(self, blocks: Blocks, client: Client) -> dict[str, Tensor]:
        return {"body": client.size.view(1) ** 0.5}


class Describes(Weighs):
    """Says it."""

    weight_label = {"body": "root of n"}  # noqa: RUF012


@pytest.mark.parametrize(
    ("kind", "says"), [(FedPer, "n"), (Weighs, "as writes says"), (Describes, "root of n")]
)
def test_a_plan_calls_no_weight_n_that_a_method_computes_otherwise(
    kind: type[Method], says: str
) -> None:
    assert [row["writes"] for row in plan(kind(small_net())).rows] == [says, "-"]
