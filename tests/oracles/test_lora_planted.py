"""Five bugs that code over adapters has had elsewhere, planted here: each is caught."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import fedblocks as fb
from fedblocks.core.blocks import Shared
from fedblocks.engines.round import Experiment, run_round
from fedblocks.engines.vectorised import Vectorised
from fedblocks.layers.lora import Adapter, LoraLinear
from fedblocks.methods.lora.adapted import HEAD, AdapterMethod

from .harness import BATCH, ENGINES, SEED, agrees, federation, task_of
from .lora import Setting
from .plain import Descent
from .test_lora_methods import ALPHA, CASES, RANK, adapted


def agree(name: str) -> None:
    kind, options, oracle = CASES[name]
    method = kind(net=adapted(), lr=0.1, epochs=2, batch_size=BATCH, **options)
    setting = Setting(task_of(method, slots=1), Descent(0.1), ALPHA / RANK, SEED)
    agrees(method, oracle(setting), ENGINES["vectorised"])


def swapped(self: Adapter, x: torch.Tensor) -> torch.Tensor:
    return F.linear(F.linear(x, self.lora_B.mT), self.lora_A.mT) * self.lora_scale


def without_scale(self: Adapter, x: torch.Tensor) -> torch.Tensor:
    return F.linear(F.linear(x, self.lora_A), self.lora_B)


def of_factors(self: fb.ProductLoRA, uploads: dict[str, fb.Upload]) -> fb.Params:
    copies = {**uploads["lora.A"].copies, **uploads["lora.B"].copies}
    shares = uploads["lora.A"].weights[:, 0] / uploads["lora.A"].weights.sum()
    return self.adapted.changes({k: torch.tensordot(shares, v, 1) for k, v in copies.items()})


def averaged_head(self: AdapterMethod) -> dict[str, fb.Block]:
    return {HEAD: Shared(self.adapted.full_head)}


PLANTED = {
    "A and B swapped": ("fedavg_lora", Adapter, "adapter_output", swapped),
    "scale missing": ("fedavg_lora", Adapter, "adapter_output", without_scale),
    "factors averaged, not products": (
        "product svd",
        fb.ProductLoRA,
        "mean_of_products",
        of_factors,
    ),
    "private head averaged": ("fedsa_lora", AdapterMethod, "head_block", averaged_head),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_caught_by_the_oracle(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, owner, attribute, wrong = PLANTED[bug]
    agree(name)
    monkeypatch.setattr(owner, attribute, wrong)
    with pytest.raises((AssertionError, RuntimeError)):
        agree(name)


def test_a_base_that_training_moves_is_caught_by_its_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = LoraLinear.forward

    def careless(self: LoraLinear, input: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.weight.mul_(0.999)
        return honest(self, input)

    kind, options, _ = CASES["fedavg_lora"]
    experiment = Experiment.of(kind(net=adapted(), batch_size=BATCH, **options), federation(), SEED)
    run_round(experiment, experiment.start(), [0, 1], Vectorised())
    experiment.frozen.check()
    monkeypatch.setattr(LoraLinear, "forward", careless)
    run_round(experiment, experiment.start(), [0, 1], Vectorised())
    with pytest.raises(fb.UserError, match='the frozen block "all/base" has changed'):
        experiment.frozen.check()
