"""Cuts of a net by name, pieces by the names of tensors, and modules that cannot be cut."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import fedblocks as fb


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def test_a_named_cut_is_among_the_pieces_and_piece_says_so() -> None:
    net = fb.Net.of(layers, blocks={"ends": ["2"]})
    assert net.pieces["ends"].names == ("2.weight", "2.bias")
    with pytest.raises(fb.NetError) as error:
        net.piece("ends")
    assert error.value.message == 'the net has no tensor "ends"'
    assert error.value.fix == 'write net.pieces["ends"]'


def test_a_piece_has_the_tensors_that_were_named_and_no_others() -> None:
    net = fb.Net.of(layers)
    assert net.piece(["2.bias", "0.weight"]).names == ("0.weight", "2.bias")
    assert net.piece("2.bias").names == ("2.bias",)
    with pytest.raises(fb.NetError) as error:
        net.piece(["2.bas"])
    assert 'did you mean "2.bias"' in error.value.fix


class WithSparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(6, 3)
        self.register_buffer("graph", torch.eye(6).to_sparse())

    def forward(self, x: Tensor) -> Tensor:
        return self.out((self.graph @ x.T).T)  # type: ignore[no-any-return, operator]


def test_a_sparse_buffer_is_refused_by_its_name() -> None:
    with pytest.raises(fb.NetError, match='the tensor "graph" of the module is sparse') as error:
        fb.Net.of(WithSparse)
    assert error.value.fix == "register a dense one: graph.to_dense()"


class Recomputing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inp, self.out = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = checkpoint(lambda z: self.inp(z).tanh(), x, use_reentrant=False)
        return self.out(hidden)  # type: ignore[no-any-return]


def test_checkpointing_is_named_as_the_cause() -> None:
    report = fb.check_net(fb.Net.of(Recomputing), torch.randn(21, 6))
    assert report.engines == ()
    assert "it uses torch.utils.checkpoint" in report.why_not("sequential")
