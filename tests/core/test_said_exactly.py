"""What is said of nets that are called or cut wrongly, and of methods that return something else:
the first wrong thing is named, and what is right is taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedblocks as fb
from fedblocks.core.cuts import check_cut, check_not_empty, linear_layers
from fedblocks.core.errors import NetError, UserError
from fedblocks.core.hooks import (
    ask_sentences,
    describe_error,
    is_number,
    noting,
    refuse_kind,
    refuse_loss,
)
from fedblocks.core.net_tensors import WrongTensors, check_all_there, refuse_unknown

NET = fb.small_net()  # 0.weight, 0.bias, 2.weight, 2.bias
PARAMS = NET.init(0)


def said(call: Any, *given: Any) -> tuple[str, str]:
    with pytest.raises(UserError) as refused:
        call(*given)
    return refused.value.message, refused.value.fix


def test_a_net_without_some_tensors_names_the_first_three() -> None:
    check_all_there(NET, PARAMS)
    check_all_there(NET, {**PARAMS, "other": torch.zeros(1)})  # is refused where it has no place
    message, fix = said(check_all_there, NET, {})
    assert message == 'the net was called without "0.weight", "0.bias", "2.weight" and 1 more'
    assert fix.startswith("give it all of its tensors")
    three = {"0.weight": PARAMS["0.weight"]}
    assert said(check_all_there, NET, three)[0].endswith('"0.bias", "2.weight", "2.bias"')


def test_a_head_that_is_not_asked_for_may_be_absent() -> None:
    body = {name: value for name, value in PARAMS.items() if name.startswith("0.")}
    check_all_there(NET, body, head=False)
    assert "2.weight" in said(check_all_there, NET, body)[0]
    with pytest.raises(WrongTensors) as refused:
        check_all_there(NET, {"0.bias": PARAMS["0.bias"]}, False)
    assert refused.value.names == ["0.weight"]


def test_blocks_in_the_place_of_their_tensors_are_told() -> None:
    message, fix = said(check_all_there, NET, {"0.bias": PARAMS["0.bias"], "body": PARAMS})
    assert message == 'the net was given whole blocks ("body"), not the tensors in them'
    assert fix.startswith("join them")
    message, fix = said(refuse_unknown, {"0.bias": PARAMS["0.bias"], "0.weigth": 1}, NET.names)
    assert message == 'the net has no tensor "0.weigth", with which it was called'
    assert '"0.weight"' in fix


class Tied(nn.Module):
    """The first and the last layer have one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = (nn.Linear(3, 3) for _ in range(3))
        self.last.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.middle(self.first(x)))


def test_a_cut_through_a_shared_tensor_is_refused_and_one_beside_it_is_not() -> None:
    module = Tied()
    for right in (["first", "last"], ["middle"], [""], []):
        check_cut(module, "head", right)
    message, fix = said(check_cut, module, "head", ["last"])
    assert message.startswith('"last.weight" in the head of the net and "first.weight" outside it')
    assert "Net.of(..., head=...)" in fix
    with pytest.raises(NetError, match=r'"last.weight" in the block "top" of the net'):
        fb.Net.of(Tied, head="middle", blocks={"top": ["last"]})
    assert fb.Net.of(Tied, head="middle", blocks={"both": ["first", "last"]}).pieces["both"].names
    with pytest.raises(NetError, match=r'"last.weight", which is also "first.weight"'):
        fb.lora(Tied, rank=1, targets="last")
    with pytest.raises(NetError, match=r'the head has the tensor "last.weight"'):
        fb.lora(Tied, rank=1, targets="middle", head="last")
    assert fb.lora(Tied, rank=1, targets="middle").targets == ("middle",)


def test_a_side_of_a_net_without_tensors_is_refused() -> None:
    check_not_empty("head", "2", ["2.weight"])
    message, _ = said(check_not_empty, "body", "2", [])
    assert message == 'the body of the net has no tensors: its head is "2"'
    assert said(check_not_empty, "body", "", [])[0].endswith("its head is the whole module")


def test_a_layer_inside_another_belongs_to_it_and_one_at_rest_to_none() -> None:
    attention = nn.MultiheadAttention(4, 2)
    module = nn.ModuleDict(
        {"attend": attention, "attended": nn.Linear(2, 2), "norm": nn.LayerNorm(2)}
    )
    assert linear_layers(module) == ["attend", "attended"]
    module["attended"].requires_grad_(False)
    assert linear_layers(module) == ["attend", "attended"]  # parameters, trained or not
    assert linear_layers(nn.Sequential(nn.ReLU(), nn.LayerNorm(2))) == []


@dataclass(frozen=True, eq=False)
class Own(fb.FedPer):
    """Somebody's method; `result` stands for what a function returns."""

    result: Any = None

    def remarks(self, tags: Any) -> Any:
        return self.result


def test_sentences_are_a_list_or_tuple_of_texts() -> None:
    assert ask_sentences(Own(NET, result=["One."]), "remarks", {}) == ["One."]
    assert ask_sentences(Own(NET, result=("One.", "Two.")), "remarks", {}) == ["One.", "Two."]
    for wrong, kind in (
        (None, "None"),
        ("One.", "a str"),
        ([1], "a list"),
        (["One.", 2], "a list"),
    ):
        message, fix = said(ask_sentences, Own(NET, result=wrong), "remarks", {})
        assert message == f"Own.remarks returns {kind}, not a list of sentences"
        assert fix == "return a list; [] says nothing"


def test_a_loss_is_one_number_and_what_else_comes_is_told() -> None:
    assert is_number(torch.tensor(1.0)) and not is_number(torch.tensor(1))
    assert not is_number(torch.zeros(1)) and not is_number(1.0)

    def outer() -> Any:
        def mean_loss() -> None: ...

        return mean_loss

    message, fix = said(refuse_loss, Own(NET), outer(), torch.zeros(3, 2))
    assert message == "Own.mean_loss returns a Tensor of shape [3, 2], not a tensor of one number"
    assert fix.startswith("return one number for a batch")
    assert said(refuse_kind, "here", None, "a list", "fix")[0] == "here returns None, not a list"
    assert said(refuse_kind, "here", [], "a dict", "fix") == (
        "here returns a list, not a dict",
        "fix",
    )


def test_a_net_that_a_method_calls_without_a_block_names_the_block() -> None:
    method = Own(NET)

    def fail(*names: str) -> str:
        with pytest.raises(UserError) as refused, noting(method, "predict"):
            raise WrongTensors("without some", "give all", list(names))
        assert refused.value.fix == "give all"
        return refused.value.message

    assert fail("2.bias") == 'Own.predict leaves out block "head": without some'
    both = fail("0.weight", "2.bias")
    assert both == 'Own.predict leaves out blocks "body" and "head": without some'
    assert fail("nowhere") == "Own.predict: without some, which no block holds"
    assert fail() == "Own.predict: without some"
    with pytest.raises(WrongTensors, match="as it is"), noting(None, "predict"):
        raise WrongTensors("as it is")


def test_an_error_is_described_by_its_kind_and_first_line() -> None:
    assert describe_error(ValueError("one\ntwo"), Own(NET), "loss").message == (
        "Own.loss failed: ValueError: one"
    )
    assert describe_error(ValueError(), Own(NET), "loss").message == "Own.loss failed: ValueError"
    assert "sequential" in describe_error(ValueError("in vmap"), Own(NET), "loss").fix
    assert "sequential" not in describe_error(ValueError("x\nvmap"), Own(NET), "loss").fix


def test_outputs_are_taken_from_what_a_module_returns_after_another_head() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"hidden": self.body(x), "logits": self.head(self.body(x))}

    from fedblocks.core.modular_net import with_outputs

    net = fb.Net.of(Two, head="head", output="logits")
    assert with_outputs(net, 5)(torch.zeros(2, 3)).shape == (2, 5)
    plain = with_outputs(fb.small_net(torch.float32), 5)
    assert plain(torch.zeros(2, 6)).shape == (2, 5)


def test_adapters_are_merged_into_the_weights_and_the_head_is_as_trained() -> None:
    """B A times alpha / rank on top of the base: 2 x (3 x 5) at one place."""
    net = fb.lora(lambda: nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)), 1, 2.0, head="1")
    params = {name: torch.zeros_like(value) for name, value in net.init(0).items()}
    params["0.lora_A"][0, 1], params["0.lora_B"][2, 0] = 3.0, 5.0
    params["1.bias"][0] = 7.0
    merged = net.merge(params)
    assert list(merged) == list(net.plain.names)
    change = merged["0.weight"] - net.base["0.weight"]
    assert change.nonzero().tolist() == [[2, 1]] and change[2, 1].item() == pytest.approx(30.0)
    assert merged["1.bias"].tolist() == [7.0, 0.0] and merged["1.weight"].abs().sum() == 0
    assert torch.equal(merged["0.bias"], net.base["0.bias"])
    assert said(fb.lora, nn.Linear(2, 3), 3)[0].startswith("rank = 3 is above the size")


def test_a_batch_is_changed_by_the_key_of_its_step() -> None:
    from fedblocks.core.client import Step
    from fedblocks.core.training_batch import batch_of

    source = SimpleNamespace(x=torch.arange(8.0).view(4, 2), y=torch.tensor([0, 1, 2, 3]))
    tensors = {"rows": torch.tensor([3, 1, 0]), "size": torch.tensor(3.0)}
    seen: list[Any] = []

    def change(x: Tensor, draws: fb.Draws) -> Tensor:
        seen.append(draws.uniform())
        return x + 100

    method = SimpleNamespace(augment=(change,))
    local: Any = SimpleNamespace(source=source, tensors=tensors, method=method, each=lambda f: f)
    step = Step(torch.tensor([2, 0, -1]), full=False)
    batch = batch_of(local, step, torch.tensor(5))
    assert batch["x"].tolist() == [[100.0, 101.0], [106.0, 107.0], [106.0, 107.0]]
    assert batch["y"].tolist() == [0, 3, 3] and batch["mask"].tolist() == [1.0, 1.0, 0.0]
    batch_of(local, step, torch.tensor(6))
    assert not torch.equal(seen[0], seen[1])
    local.method = None
    full = batch_of(local, Step(torch.tensor([1, 1]), full=True), torch.tensor(5))
    assert full["x"].tolist() == [[2.0, 3.0]] * 2 and full["mask"].tolist() == [1.0, 1.0]
