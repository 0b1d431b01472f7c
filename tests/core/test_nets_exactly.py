"""Nets, their cuts, their order and what is beside their weights, on modules of a few numbers."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedblocks as fb
from fedblocks.core import mode
from fedblocks.core.cuts import last_layer, linear_layers, owners_of, shared_tensors
from fedblocks.core.decay import _weights_of_piece
from fedblocks.core.errors import NetError, UserError
from fedblocks.core.modular_net import ModularNet, cut_before_head, modular, with_outputs
from fedblocks.core.net_tensors import check_constants
from fedblocks.core.order_of_use import _needed, layers_in_use
from fedblocks.core.recurrent_net import Unrolled
from fedblocks.core.template import tensor_places
from fedblocks.core.top_layers import linear_in_use, order_of_layers, top_piece
from tests.core.tied import Tied


class Backwards(nn.Module):
    """Declares its layers in the order last, idle, first."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.idle, self.first = nn.Linear(3, 2), nn.Linear(3, 3), nn.Linear(2, 3)
        self.norm = nn.LayerNorm(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.first(x)))


class Looking(Backwards):
    """The same, in code that cannot be followed without numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if float(x.sum()) < 9 else x


def test_layers_count_from_the_output_in_the_order_of_use() -> None:
    net = fb.Net.of(Backwards)
    assert net.order == ["first", "norm", "last"] == order_of_layers(net)
    assert linear_in_use(net) == ["first", "last"] and net.head_module == "last"
    assert top_piece(net, 1).names == ("last.weight", "last.bias")
    assert len(top_piece(net, 2).names) == 6  # all but the idle layer's
    unknown = fb.Net.of(Looking, head="last")
    assert unknown.layers_in_use is None
    assert order_of_layers(unknown) == ["idle", "first", "norm", "last"]  # the head behind
    assert linear_in_use(unknown) == ["idle", "first", "last"]
    assert fb.Net.of(Looking).head_module == "norm" == last_layer(Looking())


def test_a_layer_that_is_used_twice_stands_where_it_is_used_last() -> None:
    template = nn.ModuleDict({"attend": nn.MultiheadAttention(2, 1), "dense": nn.Linear(2, 2)})
    names = [name for name, _ in template.named_parameters()]
    net: Any = SimpleNamespace(template=template, names=names, piece=tuple)
    net.order = ["attend", "dense", "attend.out_proj"]
    assert linear_in_use(net) == ["dense", "attend"]
    assert top_piece(net, 1) == tuple(names)  # from the first use of the last on: all
    assert top_piece(net, 2) == tuple(n for n in names if "in_proj" not in n)


def test_a_net_knows_whether_its_cut_was_asked_for() -> None:
    for asked in ("head", "body", "order"):
        net = fb.Net.of(Backwards)
        assert not net.is_cut
        getattr(net, asked)
        assert net.is_cut
    assert net.rest.names == ("norm.weight", "norm.bias") == net.norms.names
    assert set(net.layers) == {"last", "idle", "first"} and net.size() == 8 + 12 + 9 + 6


def test_tensors_are_in_all_places_that_share_them() -> None:
    module = Tied()
    places = tensor_places(module)
    assert places["one.weight"] is places["two.weight"] and len(places["one.weight"]) == 2
    assert len(places["one.bias"]) == 1 and len(places["mean"]) == 2
    twice = nn.Sequential(nn.Linear(2, 2))
    twice.append(twice[0])  # one layer under two paths: one place
    assert tensor_places(twice).keys() == {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert len(tensor_places(twice)["1.weight"]) == 1
    assert shared_tensors(module) == [["one.weight", "two.weight"]]
    assert owners_of(module)["one.weight"] == {"one", "two"}
    assert owners_of(module)["free.bias"] == {"free"}
    assert linear_layers(module) == ["one", "two", "free"]


def test_a_net_runs_with_the_tensors_that_it_is_given_and_in_the_mode_it_is_in() -> None:
    net = fb.Net.of(nn.Sequential(nn.Linear(2, 1), nn.Dropout(0.5)), dtype=torch.float64)
    params = {"0.weight": torch.tensor([[1.0, 2.0]]).double(), "0.bias": torch.ones(1).double()}
    x = torch.tensor([[3.0, 4.0]])
    out = net(params, x)
    assert out.tolist() == [[12.0]] and out.dtype == torch.float64
    logits, given = net.with_features(params, x)
    assert logits.tolist() == [[12.0]] and given.tolist() == [[3.0, 4.0]]
    assert given.dtype == torch.float64 == net.features(params, x).dtype
    with mode.mode(training=True, mapped=False, key=torch.tensor(3)):
        assert net(params, x).item() in (0.0, 24.0)
    assert net(params, x).item() == 12.0
    before = net._on(torch.device("cpu")).module[0].weight
    assert before is not params["0.weight"]  # its own is back in its place


def test_constants_of_a_stored_run_are_put_in_their_place() -> None:
    net = fb.Net.of(Tied)
    params, x = net.init(0), torch.zeros(1, 2)
    first = net(params, x)
    assert net.constant_names == ["mean"]
    net.set_constants({"mean": torch.tensor([5.0, 6.0])})
    assert (net(params, x) - first)[0].tolist() == pytest.approx([2 * 4.0, 2 * 5.0])
    with pytest.raises(NetError, match="those of another net: none, not mean"):
        check_constants({"mean": x}, {})
    with pytest.raises(NetError, match="those of another net: mean, not mean"):
        check_constants({"mean": x}, {"mean": x[0]})


def test_a_start_is_in_the_precision_of_the_net_and_no_tensor_of_a_module() -> None:
    kept = nn.Linear(2, 2)
    net = fb.Net.of(lambda: kept, dtype=torch.float64)
    start = net.init(3)
    assert {value.dtype for value in start.values()} == {torch.float64}
    assert not any(value.requires_grad for value in start.values())
    single = fb.Net.of(lambda: nn.Linear(2, 2).double())
    assert single.loses_digits and not net.loses_digits
    assert not fb.Net.of(lambda: nn.Linear(2, 2).double(), dtype=torch.float64).loses_digits


def test_what_the_logits_need_is_looked_up_by_the_place_of_the_output() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Any:
            return {"a": self.a(x), "b": self.b(x)}

    class Pair(Both):
        def forward(self, x: Tensor) -> Any:
            return self.b(x), self.a(x)

    assert layers_in_use(Both(), "a") == ["a"] and layers_in_use(Both(), "b") == ["b"]
    assert layers_in_use(Both(), None) == ["a", "b"] == layers_in_use(Both(), "c")
    assert layers_in_use(Pair(), 0) == ["b"] and layers_in_use(Pair(), 1) == ["a"]
    assert layers_in_use(Pair(), 2) == ["b", "a"]
    graph = torch.fx.symbolic_trace(Pair()).graph
    nodes = list(graph.nodes)
    assert [node.name for node in nodes if node in _needed(nodes[-1], 1)] == ["x", "a"]


def test_weights_decay_and_biases_and_norms_do_not() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.GroupNorm(1, 2), nn.MultiheadAttention(2, 1))
    net = fb.Net.of(lambda: module)
    found = _weights_of_piece(net.whole)
    assert found == {"0.weight", "2.in_proj_weight", "2.out_proj.weight"}
    assert _weights_of_piece(net.piece(["0.weight", "0.bias"])) == {"0.weight"}


# modular and recurrent nets


def test_a_path_of_modules_has_the_widths_that_were_asked_for() -> None:
    net = fb.Net.of(lambda: nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
    path = modular(net, (6, 5), dropout=0.25, spread=0.0)
    shapes = [[list(path.init(0)[n].shape) for n in stage.names] for stage in path.stages]
    assert shapes == [[[3, 4], [3], [6, 3], [6]], [[5, 6], [5]], [[2, 5], [2]]]
    assert path.classes == 2 and path.template[1][2].p == 0.25
    assert all(not path.init(0)[n].any() for stage in path.stages[1:] for n in stage.names)
    drawn = modular(net, (6, 5)).init(0)
    assert all(value.any() for value in drawn.values())
    wide = modular(net, (60, 50), spread=3.0).init(0)["1.0.weight"]
    assert wide.std().item() == pytest.approx(3.0, rel=0.1)
    assert with_outputs(net, 9)(torch.zeros(1, 4)).shape == (1, 9)


def test_a_net_is_cut_before_its_head_with_blocks_that_add() -> None:
    net = fb.Net.of(lambda: nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
    path = cut_before_head(net, blocks=2, dropout=0.0, spread=0.0)
    assert len(path.stages) == 4
    start, x = path.init(0), torch.ones(1, 4)
    same = {
        "0.weight": "0.0.weight",
        "0.bias": "0.0.bias",
        "2.weight": "3.weight",
        "2.bias": "3.bias",
    }
    assert path(start, x).equal(net({old: start[new] for old, new in same.items()}, x))
    with pytest.raises(UserError, match="nothing before its last layer"):
        cut_before_head(fb.Net.of(nn.Linear(2, 2)), 1, 0.0, None)


def test_a_path_has_two_layers_or_more_and_each_has_parameters() -> None:
    def path(*layers: Any) -> ModularNet:
        return ModularNet(layers, lambda width: nn.Linear(2, width))

    dense = partial(nn.Linear, 2, 2)
    assert path(dense, dense).classes == 2
    with pytest.raises(UserError, match="output block: 1 layer is too few"):
        path(dense)
    with pytest.raises(UserError, match="output block: layer 1, 2 has no parameters"):
        path(nn.ReLU, nn.Tanh, dense)


def test_a_recurrent_net_step_by_step_is_the_net() -> None:
    class First(nn.LSTM):
        def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(x)[0]  # type: ignore[no-any-return]

    def make() -> nn.Module:
        return nn.Sequential(
            nn.Embedding(5, 2, padding_idx=4), First(2, 3, batch_first=True), nn.Linear(3, 2)
        )

    net = fb.Net.of(make)
    unrolled = Unrolled.of(net)
    assert unrolled is not None and (unrolled.width, unrolled.hidden, unrolled.padding) == (2, 3, 4)
    params, x = net.init(0), torch.tensor([[0, 1, 2], [3, 4, 4]])
    read, state, states = unrolled.embed(params, x), unrolled.start(torch.zeros(2, 3, 2)), []
    for place in range(3):
        state = unrolled.cell(params, read[:, place], state)
        states.append(state[0])
    assert torch.allclose(
        unrolled.decode(params, torch.stack(states, 1)), net(params, x), atol=1e-6
    )
    assert unrolled.real_steps(x, 3).tolist() == [[1, 1, 1], [1, 0, 0]]
    assert unrolled.encoder.names == (*unrolled.embedding.names, *unrolled.recurrent.names)
    assert Unrolled.of(fb.Net.of(nn.Sequential(nn.Linear(2, 2)))) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_layers": 2},
        {"bias": False},
        {"batch_first": False},
        {"bidirectional": True},
        {"proj_size": 1},
    ],
)
def test_an_lstm_that_is_not_plain_is_refused(wrong: dict[str, Any]) -> None:
    options = {"batch_first": True, **wrong}
    net = fb.Net.of(lambda: nn.Sequential(nn.LSTM(2, 2, **options), nn.Linear(2, 2)))
    with pytest.raises(UserError, match='the LSTM "0" cannot be run step by step'):
        Unrolled.of(net)
