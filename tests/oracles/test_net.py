"""Any module becomes a net: its pieces, how it starts, and that it trains alike in both engines."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedblocks.core.errors import UserError
from fedblocks.core.method import join
from fedblocks.core.net import Net
from fedblocks.core.pieces import Piece
from fedblocks.engines.round import evaluate
from fedblocks.methods.fedavg import FedAvg

from .harness import BATCH, CLASSES, ENGINES, SIZES, apart, federation, mlp, play

STATISTICS = ("running_mean", "running_var")


class Residual(nn.Module):
    """Dense layers with a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.inner = (
            nn.Linear(5, 6),
            nn.Sequential(nn.Linear(6, 6), nn.GroupNorm(2, 6), nn.ReLU()),
        )
        self.classifier = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.stem(x))
        return self.classifier(h + self.inner(h))


class Attentive(nn.Module):
    """A transformer encoder layer between two dense ones."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(5, 8)
        self.encode = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.classifier = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.encode(self.embed(x)).mean(1))


class Recurrent(nn.Module):
    """An LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.read = nn.LSTM(5, 6, batch_first=True)
        self.classifier = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.read(x)[0][:, -1])


class Tied(nn.Module):
    """The last layer uses the tensor of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 5, bias=False), nn.Linear(5, 5)
        self.last.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x)))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Flatten(),
        nn.Linear(12, CLASSES),
    )


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (mlp, (5,)),
    "convolutional": (convolutional, (1, 4, 4)),
    "residual": (Residual, (5,)),
    "attentive": (Attentive, (3, 5)),
    "recurrent": (Recurrent, (3, 5)),
    "tied": (Tied, (5,)),
}


def covers(pieces: list[Piece], net: Net) -> bool:
    """Whether every tensor is in exactly one of the pieces."""
    names = [name for piece in pieces for name in piece.names]
    return sorted(names) == sorted(net.names)


# one tensor cannot be on both sides
@pytest.mark.parametrize("kind", [kind for kind in NETS if kind != "tied"])
def test_body_and_head_are_the_whole_and_so_are_layers_and_rest(kind: str) -> None:
    net = Net.of(NETS[kind][0])
    assert covers([net.whole], net)
    assert covers([net.body, net.head], net)
    assert covers([*net.layers.values(), net.rest], net)
    layers = [set(piece.names) for piece in net.layers.values()]
    assert all(not one & other for one, other in combinations(layers, 2))
    assert set(net.norms.names) <= set(net.rest.names)


@pytest.mark.parametrize("kind", NETS)
def test_every_parameter_of_the_module_is_named(kind: str) -> None:
    net, module = Net.of(NETS[kind][0]), NETS[kind][0]()
    statistics = {
        f"{p}.{k}"
        for p, m in module.named_modules()
        if isinstance(m, nn.BatchNorm2d)
        for k in STATISTICS
    }
    assert set(net.names) == {name for name, _ in module.named_parameters()} | statistics
    assert net.size() == sum(p.numel() for p in module.parameters())


def test_norms_and_rest_hold_scales_and_statistics() -> None:
    net = Net.of(convolutional)
    assert (
        set(net.norms.names)
        == {"1.weight", "1.bias", "1.running_mean", "1.running_var"}
        == set(net.rest.names)
    )
    assert list(net.layers) == ["0", "5"]
    assert set(Net.of(Residual).norms.names) == {"inner.1.weight", "inner.1.bias"}
    assert list(Net.of(Attentive).layers) == [
        "embed",
        "encode.self_attn",
        "encode.linear1",
        "encode.linear2",
        "classifier",
    ]


@pytest.mark.parametrize("kind", NETS)
@pytest.mark.parametrize("given", ["a function", "a module"])
def test_the_start_is_a_function_of_the_seed(kind: str, given: str) -> None:
    make = NETS[kind][0]
    net = Net.of(make if given == "a function" else make())
    torch.manual_seed(0)  # somebody else's randomness has no effect, and is not touched
    before = torch.get_rng_state()
    one = net.init(5)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    again, other = net.init(5), net.init(6)
    assert all(torch.equal(one[k], again[k]) for k in net.names)
    # zeros and ones of norms and of attention
    constant = {k for k in net.names if one[k].unique().numel() == 1}
    assert {k for k in net.names if torch.equal(one[k], other[k])} <= constant


def test_a_piece_starts_as_its_part_of_the_whole() -> None:
    net = Net.of(mlp)
    whole, head = net.init(3), net.head.init(3)
    assert head.keys() == {"4.weight", "4.bias"} and all(
        torch.equal(v, whole[k]) for k, v in head.items()
    )


def test_a_function_starts_as_torch_would_under_the_same_seed() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(11)
        module = mlp()
    assert all(torch.equal(v, module.state_dict()[k]) for k, v in Net.of(mlp).init(11).items())


@pytest.mark.parametrize("kind", NETS)
def test_kept_weights_are_the_modules_own(kind: str) -> None:
    module = NETS[kind][0]().double()
    for value in module.parameters():
        # numbers that single precision cannot hold: nothing may be rounded on the way
        value.data += 1e-12
    net = Net.of(module, keep_weights=True, dtype=torch.float64)
    for seed in (0, 1):
        assert all(torch.equal(v, module.state_dict()[k]) for k, v in net.init(seed).items())


def test_a_module_is_not_changed_by_becoming_a_net() -> None:
    module = convolutional()
    before = {k: v.clone() for k, v in module.state_dict().items()}
    net = Net.of(module, dtype=torch.float64)
    play(FedAvg(net, lr=0.1, batch_size=BATCH), ENGINES["sequential"], federation((1, 4, 4)))
    assert (
        isinstance(module[1], nn.BatchNorm2d)
        and isinstance(module[3], nn.Dropout)
        and module.training
    )
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())


def test_the_head_is_the_last_layer_unless_named() -> None:
    assert Net.of(Residual).head_module == "classifier"
    assert set(Net.of(Residual, head="inner").head.names) == {
        n for n in Net.of(Residual).names if "inner" in n
    }
    assert set(Net.of(mlp).head.names) == {"4.weight", "4.bias"}


def test_blocks_may_be_cut_anywhere() -> None:
    net = Net.of(Residual, blocks={"low": ["stem", "inner.0"], "high": ["inner.1", "classifier"]})
    assert covers(list(net.pieces.values()), net)
    assert "inner.1.bias" in net.pieces["high"].names


def test_a_head_that_does_not_exist_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UserError, match='no module "clasifier"') as message:
        Net.of(Residual, head="clasifier")
    assert 'did you mean "classifier' in message.value.fix
    with pytest.raises(UserError, match='no module "steam"') as message:
        Net.of(Residual, blocks={"low": ["steam"]})
    assert '"stem' in message.value.fix


def test_a_net_without_parameters_is_refused() -> None:
    with pytest.raises(UserError, match="no layer with parameters"):
        Net.of(nn.Flatten)


@pytest.mark.parametrize("kind", NETS)
def test_features_are_what_the_head_is_given(kind: str) -> None:
    make, shape = NETS[kind]
    net, x = Net.of(make), torch.randn(4, *shape, generator=torch.Generator().manual_seed(0))
    params = net.init(0)
    weight = params[f"{net.head_module}.weight"] if kind != "tied" else params["first.weight"]
    answers = F.linear(net.features(params, x), weight, params[f"{net.head_module}.bias"])
    torch.testing.assert_close(answers, net(params, x))


def test_body_and_head_of_a_chain_run_one_after_the_other() -> None:
    net, x = Net.of(mlp), torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    params = net.init(0)
    body, head = ({k: params[k] for k in piece.names} for piece in (net.body, net.head))
    assert torch.equal(net.head(head, net.body(body, x)), net(join(body, head), x))
    y = x
    for stage in net.stages:
        y = stage({k: params[k] for k in stage.names}, y)
    assert torch.equal(y, net(params, x))


def test_a_piece_of_a_net_that_is_no_chain_cannot_run_alone() -> None:
    net = Net.of(Residual)
    with pytest.raises(UserError, match="cannot run on its own"):
        net.body(net.init(0), torch.zeros(1, 5))


@pytest.mark.parametrize("kind", NETS)
def test_a_net_gives_what_its_module_gives(kind: str) -> None:
    make, shape = NETS[kind]
    module, x = make(), torch.randn(4, *shape, generator=torch.Generator().manual_seed(0))
    net = Net.of(module, keep_weights=True)
    torch.testing.assert_close(net(net.init(0), x), module.eval()(x))


@pytest.mark.parametrize("kind", NETS)
def test_both_engines_train_and_evaluate_alike(kind: str) -> None:
    make, shape = NETS[kind]
    method = FedAvg(Net.of(make, dtype=torch.float64), lr=0.1, epochs=2, batch_size=BATCH)
    actual = []
    for engine in ENGINES.values():
        experiment, state = play(method, engine, federation(shape))
        actual.append((state, evaluate(experiment, state, range(len(SIZES)), engine)["personal"]))
    (one, score), (other, other_score) = actual
    assert apart(one, other) < 1e-10
    assert all(score[i] == pytest.approx(other_score[i], abs=1e-9) for i in score)


class Functional(nn.Module):
    """Dropout written as a function, as many modules have it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.dropout(F.relu(self.first(x)), 0.5, self.training))


def test_a_module_that_asks_whether_it_is_training_is_not_while_it_is_evaluated() -> None:
    module = Functional()
    net, x = Net.of(module, keep_weights=True), torch.ones(9, 5)
    assert torch.equal(net(net.init(0), x), module.eval()(x))
