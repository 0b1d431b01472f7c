"""What cannot have adapters is refused in words, with the reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedblocks as fb


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(7, 13), nn.Tanh(), nn.Linear(13, 5))


class OwnLinear(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).relu()


class OwnConv(nn.Conv2d):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).relu()


class OwnAttention(nn.MultiheadAttention):
    pass


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"targets": ()}, r"targets = \(\) names no layer"),
        ({"targets": None}, "targets = None are no names"),
        ({"targets": 5}, "targets = 5 are no names"),
        ({"targets": ("0", 2)}, r"targets = \('0', 2\) are no names"),
        ({"rank": 1.5}, "rank = 1.5 is no whole number"),
        ({"rank": True}, "rank = True is no whole number"),
        ({"rank": float("nan")}, "rank = nan is no whole number"),
        ({"rank": "4"}, "rank = '4' is no whole number"),
        ({"rank": None}, "rank = None is no whole number"),
        ({"alpha": "8"}, "alpha = '8' is no number"),
        ({"alpha": None}, "alpha = None is no number"),
        ({"alpha": float("inf")}, "alpha = inf is no finite number"),
        ({"alpha": float("nan")}, "alpha = nan is no finite number"),
        ({"alpha": -1.0}, "alpha = -1.0 is not above 0"),
        ({"head": 2}, "head = 2 is no path"),
    ],
)
def test_options_of_a_wrong_kind_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(fb.UserError, match=message):
        fb.lora(plain(), **{"rank": 2, "targets": ("0",), **options})


LAYERS: list[tuple[Callable[[], nn.Module], str]] = [
    (lambda: nn.Conv2d(3, 4, 3), "a Conv2d with filters of 3 x 3, not 1 x 1"),
    (lambda: nn.Conv2d(4, 4, 1, padding=1), r"a Conv2d with padding=\(1, 1\), where an adapter"),
    (lambda: nn.Conv2d(4, 4, 1, groups=2), "a Conv2d with groups=2, and an adapter would mix"),
    (lambda: nn.Embedding(9, 4, max_norm=1.0), "an Embedding with max_norm, which writes"),
    (lambda: nn.Embedding(9, 4, sparse=True), "an Embedding with sparse=True"),
    (
        lambda: nn.Embedding(9, 4, scale_grad_by_freq=True),
        "an Embedding with scale_grad_by_freq=True",
    ),
    (lambda: nn.MultiheadAttention(4, 2, kdim=6), "a MultiheadAttention with another kdim or vdim"),
    (lambda: OwnLinear(7, 4), r"an OwnLinear of its own code: .* a plain nn\.Linear"),
    (lambda: OwnConv(7, 4, 1), r"an OwnConv of its own code: .* a plain nn\.Conv2d"),
    (lambda: OwnAttention(4, 2), r"an OwnAttention of its own code"),
    (lambda: nn.LayerNorm(4), "a LayerNorm that no adapter fits"),
]


@pytest.mark.parametrize(("layer", "message"), LAYERS)
def test_a_layer_that_no_adapter_fits_is_refused_with_the_reason(
    layer: Callable[[], nn.Module], message: str
) -> None:
    module = nn.ModuleDict({"own": layer(), "out": nn.Linear(7, 5)})
    with pytest.raises(fb.UserError, match=f'the target "own" is {message}'):
        fb.lora(module, rank=2, targets=("own",))


@pytest.mark.parametrize("bias", [True, False])
def test_quantised_weights_are_refused(bias: bool) -> None:
    module = nn.Sequential(nn.Linear(7, 13, bias=bias), nn.Linear(13, 5))
    weight = module[0].weight.data
    del module[0].weight
    module[0].register_buffer("weight", (weight * 100).to(torch.int8))
    with pytest.raises(fb.UserError, match='the weights of the target "0" are int8'):
        fb.lora(module, rank=2, targets=("0",))


@pytest.mark.parametrize("name", ["0.weight", "2.bias"])
def test_nan_in_the_base_is_refused(name: str) -> None:
    module = plain()
    with torch.no_grad():
        module.get_parameter(name).view(-1)[0] = torch.nan
    with pytest.raises(fb.UserError, match=f'the base has NaN in "{name}"'):
        fb.lora(module, rank=2, targets=("0",))


def test_adapters_on_adapters_are_refused() -> None:
    net = fb.lora(plain(), rank=2, targets=("0",))
    with pytest.raises(fb.UserError, match="the net has adapters already"):
        fb.lora(net, rank=2)
    with pytest.raises(fb.UserError, match='"0" is a LoraLinear that has an adapter already'):
        fb.lora(net.template, rank=2, targets=("0",))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_base_in_half_precision_is_computed_in_single(dtype: torch.dtype) -> None:
    half = plain().to(dtype)
    net = fb.lora(half, rank=2, targets=("0",))
    x = torch.randn(4, 7)
    assert net.base["0.weight"].dtype == torch.float32
    assert torch.equal(net(net.init(0), x), half.float()(x))  # its numbers, exactly


def test_fedmn_needs_a_head_to_take_the_place_of() -> None:
    headless = fb.lora(plain(), rank=2, targets=("0",))
    with pytest.raises(fb.UserError, match="the net with adapters has no head"):
        _ = fb.FedMN(headless).path
    assert fb.FedMN(fb.lora(plain(), rank=2, targets=("0",), head="2")).path.classes == 5


@pytest.mark.parametrize(("number", "what"), [(float("inf"), "an infinity"), (float("nan"), "NaN")])
def test_a_base_with_a_number_that_is_not_finite_is_refused(number: float, what: str) -> None:
    module = plain()
    module[2].bias.data[0] = number
    with pytest.raises(fb.UserError, match=f'the base has {what} in "2.bias"'):
        fb.lora(module, rank=2, targets=("0",))


def test_a_module_without_a_fitting_layer_is_told_what_fits() -> None:
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten())
    with pytest.raises(
        fb.UserError, match=r"no layer outside .* fits an adapter\s+fix: adapters fit nn.Linear"
    ):
        fb.lora(module, rank=2)
    with pytest.raises(
        fb.UserError, match=r'matches the target "query"\s+fix: adapters fit nn.Linear'
    ):
        fb.lora(module, rank=2, targets="query")


def test_half_precision_is_refused_with_the_option_to_change() -> None:
    with pytest.raises(
        fb.UserError, match=r"adapters in float16 .*\s+fix: use float32: fb.lora\(module, dtype="
    ):
        fb.lora(plain(), rank=2, dtype=torch.float16)


class TiedWords(nn.Module):
    """A model of words whose output layer has the tensor of its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.body = nn.Embedding(11, 6), nn.Linear(6, 6)
        self.out = nn.Linear(6, 11, bias=False)
        self.out.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out(torch.tanh(self.body(self.words(x).mean(1))))
        return y


def test_all_leaves_tied_layers_out_and_a_run_says_so(tmp_path) -> None:
    net = fb.lora(TiedWords(), rank=2)
    assert net.targets == ("body",) and net.left_out == ["out"]
    assert fb.lora(TiedWords(), rank=2, targets="body").left_out == []
    with pytest.raises(
        fb.UserError, match=r'the target "out" has the tensor "out.weight", which is also'
    ):
        fb.lora(TiedWords(), rank=2, targets=("out",))
    x = torch.randint(0, 11, (40, 3), generator=torch.Generator().manual_seed(0))
    data = fb.Federation.from_users(x, x[:, 0], torch.arange(40) % 4)
    result = fb.run(fb.FedAvgLoRA(net), data, rounds=1, out=tmp_path / "run")
    said = [note["text"] for note in result.notes]
    assert 'targets = "all" leaves out "out": other layers have the same tensors' in said
