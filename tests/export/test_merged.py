"""A client's model as the weights of the plain module: for every method it is the model that the
run evaluates, or is refused with the reason; other ways to it are right or refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fedblocks as fb
from fedblocks.config.registry import METHODS
from fedblocks.methods.ifca import IFCA

X = torch.randn(80, 7, generator=torch.Generator().manual_seed(0))
DATA = fb.Federation.from_users(X, torch.arange(80) % 5, torch.arange(80) % 4)


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 13), nn.Tanh(), nn.Linear(13, 5))


def net() -> fb.LoraNet:
    return fb.lora(module(), rank=3, alpha=5.0, targets=("0",), head="2")


SHARED: dict[str, Any] = {"head": "shared"}
ADAPTED: dict[str, tuple[type[fb.Method], dict[str, Any]]] = {
    "fedavg_lora": (fb.FedAvgLoRA, SHARED),
    "ranks": (fb.FedAvgLoRA, {**SHARED, "ranks": (1, 3)}),
    "ffa": (fb.FFALoRA, SHARED),
    "fedsa": (fb.FedSALoRA, {"head": "private"}),
    "svd": (fb.ProductLoRA, {**SHARED, "keep": "svd"}),
    "svd ranks": (fb.ProductLoRA, {**SHARED, "keep": "svd", "ranks": (1, 3)}),
    "stack": (fb.ProductLoRA, {**SHARED, "keep": "stack"}),
    "residual": (fb.ProductLoRA, {**SHARED, "keep": "residual"}),
    "residual ranks": (fb.ProductLoRA, {**SHARED, "keep": "residual", "ranks": (1, 3)}),
    "dual": (fb.DualLoRA, SHARED),
    "rest": (fb.DualLoRA, {**SHARED, "other": "rest"}),
    "final": (fb.DualLoRA, {**SHARED, "order": "final"}),
}
GENERAL = {name: (kind, {}) for name, kind in METHODS.items()}
# methods that need what this net or these data do not have
UNFIT = {"modfl", "fedmn", "fedmn_reference", "dynamic_routing", "flow", "flow_v2", "fedbn"}
# an output of these is more than one pass of a net
MANY = {"fedem"}
CASES = {**ADAPTED, **{k: v for k, v in GENERAL.items() if k not in UNFIT}}


def load(weights: fb.Params) -> nn.Module:
    made = module()
    made.load_state_dict(weights)
    return made.eval()


@pytest.mark.parametrize("name", CASES)
def test_merged_weights_are_the_model_or_are_refused(name: str, tmp_path: Path) -> None:
    kind, options = CASES[name]
    options = {**options, "start": "updates"} if kind is IFCA else options
    method = kind(net(), lr=0.3, **options)
    run = fb.run(method, DATA, rounds=2, out=tmp_path / "run", engine="sequential")
    model = fb.personal(run, 0, method, DATA)
    wanted = model.predict(X)
    if name in MANY:
        with pytest.raises(fb.UserError, match="is no single net: a prediction is 3 passes"):
            model.merged()
    else:
        torch.testing.assert_close(load(model.merged())(X), wanted, rtol=1e-5, atol=1e-5)
    try:
        by_hand = net().merge(fb.join(*model.blocks.values()))
    except fb.UserError:
        return
    torch.testing.assert_close(load(by_hand)(X), wanted, rtol=1e-5, atol=1e-5)


def test_a_model_without_adapters_is_a_module_too(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = nn.Linear(7, 7, bias=False), nn.Linear(7, 7, bias=False)
            self.outer.weight = self.inner.weight
            self.norm, self.out = nn.BatchNorm1d(7), nn.Linear(7, 5)
            self.register_buffer("shift", torch.randn(7))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.out(self.norm(self.outer(self.inner(x).tanh() + self.shift)))
            return y

    method = fb.Ditto(fb.Net.of(Tied), lr=0.1, statistics="average")
    run = fb.run(method, DATA, rounds=2, out=tmp_path / "run", engine="sequential")
    model = fb.personal(run, 1, method, DATA)
    made = Tied()
    made.load_state_dict(model.merged())  # with all names, those of the tied tensor, too
    torch.testing.assert_close(made.eval()(X), model.predict(X), rtol=1e-5, atol=1e-5)


def test_two_tensors_of_one_name_are_not_joined() -> None:
    one = {"0.weight": torch.ones(2)}
    assert fb.join(one, {"b": torch.zeros(1)}, one).keys() == {"0.weight", "b"}
    with pytest.raises(fb.UserError, match=r'have a tensor "0.weight", and one would be lost'):
        fb.join(one, {"0.weight": torch.ones(2)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"0": torch.ones(13, 7)}, '"0" is no tensor of the net'),
        ({"0.lora_A": torch.ones(2, 3, 7)}, r'"0.lora_A" is \[2, 3, 7\], not \[3, 7\]'),
        ({"2.bias": torch.ones(2, 5)}, r'"2.bias" is \[2, 5\], not \[5\]'),
    ],
)
def test_merging_other_tensors_than_the_nets_is_refused(change: fb.Params, message: str) -> None:
    with pytest.raises(fb.UserError, match=message) as error:
        net().merge({**net().init(0), **change})
    assert "merged()" in str(error.value.fix)


def test_merging_without_a_tensor_is_refused() -> None:
    with pytest.raises(fb.UserError, match=r'called without "0.lora_B"'):
        net().merge({k: v for k, v in net().init(0).items() if k != "0.lora_B"})
