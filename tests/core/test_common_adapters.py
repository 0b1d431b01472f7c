"""Groups of clients whose factors are averaged together have one base and one scale."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fedblocks as fb

DATA = fb.small_federation(dtype=torch.float32)
GROUPS = {"small": [1, 2]}
torch.manual_seed(0)
BASE = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
OTHER = copy.deepcopy(BASE)
OTHER[0].weight.data += 1.0


def net(base: nn.Module = BASE, alpha: float = 4.0) -> fb.LoraNet:
    return fb.lora(base, rank=2, alpha=alpha, targets=("0",))


METHODS: dict[str, Any] = {
    "fedavg_lora": fb.FedAvgLoRA,
    "fedavg": fb.FedAvg,
    "fedsa": fb.FedSALoRA,
    "ffa": fb.FFALoRA,
    "residual": lambda net: fb.ProductLoRA(net, keep="residual"),
    "fedalt": lambda net: fb.DualLoRA(net, other="rest"),
    "ditto": fb.Ditto,
}
WRONG = {
    "scale": (net(alpha=400.0), r"adapters have scale 2\.0 and scale 200\.0"),
    "base": (net(OTHER), r"stand over different bases \(hash \w{12} and \w{12}\)"),
}


def run(kind: Any, one: fb.LoraNet, other: fb.LoraNet, folder: Path) -> Any:
    methods = {"all": kind(one), "small": kind(other)}
    return fb.run(methods, DATA, rounds=1, groups=GROUPS, out=folder / "run", engine="sequential")


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("name", METHODS)
def test_factors_of_another_scale_or_base_are_averaged_with_nobody(name, wrong, tmp_path):
    other, says = WRONG[wrong]
    with pytest.raises(fb.UserError, match=says):
        run(METHODS[name], net(), other, tmp_path)


def test_groups_with_equal_adapters_run(tmp_path):
    assert run(fb.FedAvgLoRA, net(), net(copy.deepcopy(BASE)), tmp_path).status == "finished"


def test_groups_that_average_nothing_may_differ(tmp_path):
    assert run(fb.Local, net(), net(OTHER, alpha=400.0), tmp_path).status == "finished"


def test_a_head_alone_may_be_averaged_over_different_bases(tmp_path):
    """As heads over different bodies may."""

    class SharedHead(fb.FedSALoRA):
        def blocks(self) -> dict[str, fb.Block]:
            own = {
                "lora.A": fb.Private(self.adapted.lora_A),
                "lora.B": fb.Private(self.adapted.lora_B),
            }
            return {**own, "head": fb.Shared(self.adapted.full_head)}

    nets = [fb.lora(base, rank=2, targets=("0",), head="2") for base in (BASE, OTHER)]
    methods = {
        "all": SharedHead(nets[0], head="shared"),
        "small": SharedHead(nets[1], head="shared"),
    }
    result = fb.run(methods, DATA, rounds=1, groups=GROUPS, out=tmp_path / "run")
    assert result.status == "finished"
