"""An adapter beside a layer whose weights the module also reads by themselves is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fedblocks as fb
from fedblocks.engines.net_check import check
from fedblocks.engines.net_check.merging import unlike_merged

X = torch.randn(40, 7, generator=torch.Generator().manual_seed(0))
DATA = fb.Federation.from_users(X, torch.arange(40) % 5, torch.arange(40) % 4)


class Unfolds(nn.Module):
    """What a layer folds, its transposed weights unfold; another layer is only called."""

    def __init__(self, direct: bool, width: int = 9) -> None:
        super().__init__()
        self.body, self.fold = nn.Linear(7, 7), nn.Linear(7, width, bias=False)
        self.unfold, self.out = nn.Linear(width, 7, bias=False), nn.Linear(7, 5)
        self.direct = direct

    def forward(self, x: Tensor) -> Tensor:
        folded = torch.tanh(self.fold(self.body(x)))
        weight = self.fold.weight.T if self.direct else self.unfold.weight
        y: Tensor = self.out(nn.functional.linear(folded, weight))
        return y


def method(direct: bool, *targets: str, width: int = 9) -> fb.Method:
    torch.manual_seed(0)
    net = fb.lora(Unfolds(direct, width), rank=3, targets=targets, head="out")
    return fb.FedAvgLoRA(net, head="shared", lr=0.1)


@pytest.mark.parametrize("targets", [("fold",), ("body", "fold")])
def test_a_target_that_is_also_read_directly_is_refused(
    targets: tuple[str, ...], tmp_path: Path
) -> None:
    with pytest.raises(fb.UserError, match='reads the weights of "fold" directly'):
        fb.run(method(True, *targets), DATA, rounds=1, out=tmp_path / "run")
    report = fb.check_net(method(True, *targets).net, X)
    assert not report.engines


def test_a_target_that_is_only_read_directly_is_refused(tmp_path: Path) -> None:
    with pytest.raises(fb.UserError, match='reads the weights of "unfold" directly'):
        fb.run(method(False, "unfold"), DATA, rounds=1, out=tmp_path / "run")


@pytest.mark.parametrize(("direct", "targets"), [(True, ("body",)), (False, ("body", "fold"))])
def test_layers_that_are_only_called_may_have_adapters(
    direct: bool, targets: tuple[str, ...], tmp_path: Path
) -> None:
    fb.run(method(direct, *targets), DATA, rounds=1, out=tmp_path / "run")


def test_a_net_too_large_for_other_checks_is_tried_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "MOST", 10)  # parameters that train
    with pytest.raises(fb.UserError, match='reads the weights of "fold" directly'):
        fb.run(method(True, "fold", width=11), DATA, rounds=1, out=tmp_path / "run")


class ReadsInOneMode(nn.Module):
    """Calls the layer in one mode, and reads its weights in the other."""

    def __init__(self, in_training: bool) -> None:
        super().__init__()
        self.body, self.drop, self.out = nn.Linear(7, 7), nn.Dropout(0.5), nn.Linear(7, 5)
        self.in_training = in_training

    def forward(self, x: Tensor) -> Tensor:
        directly = self.training is self.in_training
        read = nn.functional.linear(x, self.body.weight, self.body.bias)
        y: Tensor = self.out(self.drop(torch.tanh(read if directly else self.body(x))))
        return y


@pytest.mark.parametrize("head", ["out", None])
@pytest.mark.parametrize("in_training", [True, False])
def test_a_target_that_is_read_directly_in_one_mode_alone_is_refused(
    in_training: bool, head: str | None, tmp_path: Path
) -> None:
    net = fb.lora(ReadsInOneMode(in_training), rank=3, targets=("body",), head=head)
    own = fb.FedSALoRA(net, head=None if head is None else "private", lr=0.1)
    with pytest.raises(fb.UserError, match='reads the weights of "body" directly'):
        fb.run(own, DATA, rounds=1, out=tmp_path / "run")


def test_dropout_is_the_same_for_both_and_refuses_nobody(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(7, 9), nn.Dropout(0.5), nn.Linear(9, 5))
    assert not unlike_merged(fb.lora(module, rank=3), X)


class ScaledByItsNorm(nn.Module):
    """Outputs fall with the size of a layer's weights: too little to see at the start."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.out = nn.Linear(7, 7), nn.Linear(7, 5)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out(torch.tanh(self.body(x))) / (1 + 1e-3 * self.body.weight.norm())
        return y


def test_merged_weights_that_are_not_the_model_are_refused(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = fb.lora(ScaledByItsNorm(), rank=2, alpha=200.0, targets=("body",))
    own = fb.FedSALoRA(net, lr=0.5, batch_size=4)
    fb.run(own, DATA, rounds=6, out=tmp_path / "run")
    with pytest.raises(fb.UserError, match="merged weights are not the model: outputs differ by"):
        fb.personal(tmp_path / "run", 0, own, DATA).merged()
