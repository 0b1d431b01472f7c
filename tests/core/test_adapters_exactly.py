"""Which adapters are made, and of which base, at the edges of what is refused."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from fedblocks.core.errors import NetError, UserError
from fedblocks.core.lora_origin import check_numbers, modules_in, share_tensors, with_own_modules
from fedblocks.core.lora_targets import (
    LoraSpec,
    _tie,
    check_spec,
    find_targets,
    names_of_targets,
    tied_layers,
)  # fmt: skip
from tests.core.tied import Tied


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (LoraSpec(rank=True), "rank = True is no whole number"),
        (LoraSpec(rank=2.5), "rank = 2.5 is no whole number"),  # type: ignore[arg-type]
        (LoraSpec(rank="2"), "rank = '2' is no whole number"),  # type: ignore[arg-type]
        (LoraSpec(rank=0), "rank = 0 leaves no adapter"),
        (LoraSpec(alpha=True), "alpha = True is no number"),
        (LoraSpec(alpha="2"), "alpha = '2' is no number"),  # type: ignore[arg-type]
        (LoraSpec(alpha=0), "alpha = 0 is not above 0"),
        (LoraSpec(alpha=-1.0), "alpha = -1.0 is not above 0"),
        (LoraSpec(alpha=float("inf")), "alpha = inf is no finite number"),
        (LoraSpec(alpha=float("nan")), "alpha = nan is no finite number"),
        (LoraSpec(head=2), "head = 2 is no path"),  # type: ignore[arg-type]
    ],
)
def test_sizes_of_adapters_are_numbers_above_0(spec: LoraSpec, said: str) -> None:
    with pytest.raises(UserError) as refused:
        check_spec(spec, torch.float32)
    assert refused.value.message == said


def test_adapters_at_the_edge_are_taken() -> None:
    check_spec(LoraSpec(1, 1, head="x"), torch.float32)
    check_spec(LoraSpec(1, 0.5), torch.float64)
    for dtype in (torch.float16, torch.bfloat16, torch.int64):
        with pytest.raises(UserError, match="lose digits in every product"):
            check_spec(LoraSpec(), dtype)
    assert names_of_targets("query") == ("query",) and names_of_targets(["a", "b"]) == ("a", "b")
    for wrong in (3, [3], ["a", None]):
        with pytest.raises(UserError, match="are no names of layers"):
            names_of_targets(wrong)
    with pytest.raises(UserError, match="names no layer"):
        names_of_targets([])
    square = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    assert find_targets(square, LoraSpec(3, targets=("0",))) == ["0"]
    with pytest.raises(UserError, match="choose a rank of at most 3"):
        find_targets(square, LoraSpec(4, targets=("0",)))


def test_tied_layers_are_left_out_and_refused_by_name() -> None:
    module = Tied()
    assert find_targets(module, LoraSpec(1)) == ["free"]
    assert tied_layers(module, LoraSpec(1)) == ["one", "two"]
    assert tied_layers(module, LoraSpec(1, targets=("free",))) == []
    assert _tie(module, ["two"]) == ("two.weight", "one.weight")
    assert _tie(module, ["one", "two"]) is None is _tie(module, ["free"])
    for spec, what in (
        (LoraSpec(1, targets=("one",)), 'the target "one"'),
        (LoraSpec(1, head="two"), "the head"),
    ):
        with pytest.raises(NetError, match=f"{what} has the tensor"):
            find_targets(module, spec)


def test_a_base_is_held_once_and_has_no_odd_numbers() -> None:
    module = nn.Linear(2, 1)
    make = partial(lambda a, b: a, partial(lambda a: a, module), 3)
    own = with_own_modules(make)
    (copied,) = modules_in(own)
    assert copied is not module and copied.weight.equal(module.weight)
    base = {"weight": torch.ones(1, 2), "bias": torch.ones(1).double()}
    share_tensors(copied, base)
    assert copied.weight.data_ptr() == base["weight"].data_ptr()
    assert copied.bias.dtype == torch.float32  # of another kind: it is not the same
    check_numbers({"a": torch.ones(2), "n": torch.ones(2).long()})
    for odd, what in ((float("nan"), "NaN"), (float("inf"), "an infinity")):
        with pytest.raises(NetError, match=f'the base has {what} in "b"'):
            check_numbers({"a": torch.ones(2), "b": torch.tensor([1.0, odd])})
