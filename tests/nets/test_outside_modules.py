"""A user's module trains as in plain PyTorch on both engines, or is refused with the reason."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

import fedblocks as fb
from fedblocks.core import mode
from fedblocks.core.random import derive
from fedblocks.data.rows import Rows
from fedblocks.layers.replacement import mappable

ENGINES: dict[str, fb.Engine] = {
    "sequential": fb.Sequential(worth=1),
    "vectorised": fb.Vectorised(),
}
SIZES, SEED, ROUNDS = (9, 4, 7), 1, 4
Make = Callable[[], nn.Module]


def data() -> fb.Federation:
    """Three clients of unequal sizes."""
    draw, ends = torch.Generator().manual_seed(0), np.cumsum(SIZES)
    x = torch.randn(sum(SIZES), 5, generator=draw, dtype=torch.float64)
    y = torch.randint(0, 3, (sum(SIZES),), generator=draw)
    rows = Rows.of([np.arange(end - size, end) for end, size in zip(ends, SIZES, strict=True)])
    return fb.Federation(x, y, rows, Rows.none(3), rows, classes=3)


def local(make: Make) -> fb.Method:
    """Clients on their own, each with one batch of all its examples a round."""
    return fb.Local(fb.Net.of(make, dtype=torch.float64), lr=0.1, batch_size=max(SIZES))


def trained(method: fb.Method, engine: str) -> list[dict[str, Tensor]]:
    """The clients' models after some rounds."""
    experiment = fb.Experiment.of(method, data(), SEED)
    state = experiment.start()
    for _ in range(ROUNDS):
        state, report = fb.run_round(experiment, state, range(len(SIZES)), ENGINES[engine])
        assert report.refusals == []
    return [state.private[client]["model"] for client in range(len(SIZES))]


def plainly(make: Make, start: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    """The same in plain PyTorch: a step on all examples of a client is a round."""
    found = []
    for rows in data().train:
        module = make().double().train()
        module.load_state_dict(start, strict=False)
        optimizer = torch.optim.SGD(module.parameters(), 0.1)
        for _ in range(ROUNDS):
            optimizer.zero_grad()
            F.cross_entropy(module(data().x[rows]), data().y[rows]).backward()
            optimizer.step()
        found.append({k: v.detach() for k, v in module.state_dict().items()})
    return found


def agrees_with_torch(make: Make, engine: str) -> None:
    method = local(make)
    wanted = plainly(make, method.net.init(derive(SEED, "init", 0)))
    for ours, theirs in zip(trained(method, engine), wanted, strict=True):
        for name, value in ours.items():
            torch.testing.assert_close(value, theirs[name], rtol=0, atol=1e-12)


class Twice(nn.Module):
    """One layer under two names and in a list, used three times in every pass."""

    def __init__(self, make: Make) -> None:
        super().__init__()
        self.first, self.second, self.fc = nn.Linear(5, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.one = self.other = make()
        self.listed = [self.one]

    def forward(self, x: Tensor) -> Tensor:
        h = self.one(torch.tanh(self.first(x)))
        return self.fc(self.listed[0](self.other(torch.tanh(self.second(h)))))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("layer", [partial(nn.BatchNorm1d, 6), partial(nn.Linear, 6, 6)])
def test_a_layer_under_two_names_is_one_layer(layer: Make, engine: str) -> None:
    agrees_with_torch(partial(Twice, layer), engine)


def test_a_dropout_under_two_names_drops_wherever_it_is_used() -> None:
    net = fb.Net.of(partial(Twice, partial(nn.Dropout, 0.5)))
    drops: list[nn.Module] = [net.template.one, net.template.other, net.template.listed[0]]
    with mode.mode(training=True, mapped=False, key=torch.tensor(3)):
        assert all((layer(torch.ones(400)) == 0).any() for layer in drops)


def in_a_chain(conv: nn.Module) -> nn.Module:
    return nn.Sequential(
        conv, nn.Tanh(), conv, nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)
    )


class InAModule(nn.Module):
    """A convolution by itself, and in a chain."""

    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.again, self.features, self.fc = (
            conv,
            nn.Sequential(conv, nn.MaxPool2d(2)),
            nn.Linear(16, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.features(self.again(x)).flatten(1))


@pytest.mark.parametrize("make", [in_a_chain, InAModule])
def test_a_convolution_that_is_used_twice_pools_only_where_pooling_follows(
    make: Callable[..., nn.Module],
) -> None:
    torch.manual_seed(0)
    module, x = make(nn.Conv2d(1, 1, 3, padding=1)), torch.randn(2, 1, 8, 8)
    net = fb.Net.of(module, keep_weights=True)
    torch.testing.assert_close(net(net.init(0), x), module(x))


@pytest.mark.parametrize("base", [nn.BatchNorm1d, nn.Dropout])
def test_a_layer_with_a_forward_pass_of_its_own_is_not_taken_for_torchs(
    base: type[nn.Module],
) -> None:
    own = type("Own", (base,), {"forward": lambda self, x: x})
    with pytest.raises(
        fb.NetError, match=f'"1" is a Own, a {base.__name__} with a forward pass of its own'
    ):
        fb.Net.of(
            lambda: nn.Sequential(
                nn.Linear(5, 6), own(6) if base is nn.BatchNorm1d else own(), nn.Linear(6, 3)
            )
        )


class Asking(nn.Module):
    """Does something else while it is training."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.fc = nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.inner(x))
        return self.fc(h * 2 if self.training else h)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_module_knows_that_it_is_training(engine: str) -> None:
    agrees_with_torch(Asking, engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_module_knows_that_it_is_evaluated_also_after_training(engine: str) -> None:
    method = local(Asking)
    experiment = fb.Experiment.of(method, data(), SEED)
    state, _ = fb.run_round(experiment, experiment.start(), range(3), ENGINES[engine])
    scores = fb.evaluate(experiment, state, range(3), ENGINES[engine])["personal"]
    for client, rows in enumerate(data().train):
        module = Asking().double().eval()
        module.load_state_dict(state.private[client]["model"])
        wanted = F.cross_entropy(module(data().x[rows]), data().y[rows], reduction="sum").item()
        assert scores[client][2] == pytest.approx(wanted, abs=1e-10)


class FrozenStatistics(nn.Module):
    """Keeps its BatchNorm in evaluation mode, as fine-tuning does."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.fc = nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)

    def train(self, mode: bool = True) -> nn.Module:
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.norm(self.inner(x)))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_module_may_keep_its_statistics_as_they_are(engine: str) -> None:
    agrees_with_torch(FrozenStatistics, engine)


class Noisy(nn.Module):
    """Draws noise by a function."""

    def __init__(self, noise: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.inner, self.fc, self.noise = nn.Linear(5, 6), nn.Linear(6, 3), noise

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.noise(self, torch.tanh(self.inner(x))))


DRAWN: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "F.dropout": lambda module, h: F.dropout(h, 0.5, module.training),
    "F.dropout in place": lambda module, h: F.dropout(h * 1, 0.5, module.training, inplace=True),
    "F.dropout1d": lambda module, h: F.dropout1d(h[:, :, None], 0.5, module.training)[:, :, 0],
    "torch.rand_like": lambda module, h: h + torch.rand_like(h) if module.training else h,
    "torch.randn": lambda module, h: (
        h + torch.randn(h.shape, dtype=h.dtype) if module.training else h
    ),
    "torch.bernoulli": lambda module, h: (
        h * torch.bernoulli(torch.full_like(h, 0.5)) if module.training else h
    ),
    "attention": lambda module, h: F.scaled_dot_product_attention(
        *[h[:, None, :, None]] * 3, dropout_p=0.5 if module.training else 0.0
    ).flatten(1),
    "attention, by position": lambda module, h: F.scaled_dot_product_attention(
        *[h[:, None, :, None]] * 3, None, 0.5 if module.training else 0.0
    ).flatten(1),
}


@pytest.mark.parametrize("kind", DRAWN)
def test_noise_drawn_by_a_function_is_the_same_on_both_engines_and_changes_training(
    kind: str,
) -> None:
    method = local(partial(Noisy, DRAWN[kind]))
    before = torch.get_rng_state()
    one, other = trained(method, "sequential"), trained(method, "vectorised")
    quiet = trained(local(partial(Noisy, lambda module, h: h)), "sequential")
    assert torch.equal(torch.get_rng_state(), before)
    for mine, theirs, without in zip(one, other, quiet, strict=True):
        for name, value in mine.items():
            torch.testing.assert_close(value, theirs[name], rtol=0, atol=1e-10)
        assert not torch.allclose(mine["fc.weight"], without["fc.weight"], atol=1e-4)


class Steps(nn.Module):
    """Reads its five numbers one after the other."""

    def __init__(self, layer: Callable[[float], nn.Module], dropout: float) -> None:
        super().__init__()
        self.inner, self.layer, self.fc = nn.Linear(1, 4), layer(dropout), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(x[:, :, None])  # [batch, steps, 4]
        h = self.layer(h, h, h) if isinstance(self.layer, nn.MultiheadAttention) else self.layer(h)
        return self.fc((h[0] if isinstance(h, tuple) else h)[:, -1])


NOISY_LAYERS: dict[str, Callable[[float], nn.Module]] = {
    "attention": lambda p: nn.MultiheadAttention(4, 2, dropout=p, batch_first=True),
    "transformer": lambda p: nn.TransformerEncoderLayer(4, 2, 6, p, batch_first=True),
    "gru": lambda p: nn.GRU(4, 4, 2, dropout=p, batch_first=True),
    "lstm": lambda p: nn.LSTM(4, 4, 3, dropout=p, batch_first=True),
}


@pytest.mark.parametrize("kind", NOISY_LAYERS)
def test_noise_inside_a_layer_is_the_same_on_both_engines_and_changes_training_alone(
    kind: str,
) -> None:
    noisy, quiet = (partial(Steps, NOISY_LAYERS[kind], p) for p in (0.3, 0.0))
    before = torch.get_rng_state()
    one, other = (trained(local(noisy), engine) for engine in ENGINES)
    without = trained(local(quiet), "sequential")
    assert torch.equal(torch.get_rng_state(), before)
    for mine, theirs, plain in zip(one, other, without, strict=True):
        for name, value in mine.items():
            torch.testing.assert_close(value, theirs[name], rtol=0, atol=1e-10)
        assert not torch.allclose(mine["fc.weight"], plain["fc.weight"], atol=1e-6)
    x = torch.linspace(-1, 1, 10, dtype=torch.float64).view(2, 5)
    nets = [local(make).net for make in (noisy, quiet)]
    predictions = [net(one[0], x) for net in nets]
    torch.testing.assert_close(*predictions, rtol=0, atol=1e-12)


def in_single_layers(stack: nn.RNNBase) -> tuple[nn.ModuleList, nn.Module]:
    """The layers of a recurrent stack, each by itself, and the dropout between them."""
    width = stack.hidden_size * (2 if stack.bidirectional else 1)
    layers = nn.ModuleList()
    for number in range(stack.num_layers):
        inputs = width if number else stack.input_size
        options = {"batch_first": True, "bidirectional": stack.bidirectional}
        layer = type(stack)(inputs, stack.hidden_size, **options).double()
        tensors = stack.state_dict().items()
        place = f"_l{number}"
        own = {name.replace(place, "_l0"): value for name, value in tensors if place in name}
        layer.load_state_dict(own)
        layers.append(layer)
    return layers, mappable(nn.Dropout(stack.dropout))


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_dropout_in_a_recurrent_stack_is_between_its_layers_and_nowhere_else(
    kind: type[nn.RNNBase], bidirectional: bool
) -> None:
    stack = kind(4, 5, 3, dropout=0.4, batch_first=True, bidirectional=bidirectional).double()
    x = torch.randn(6, 7, 4, dtype=torch.float64)
    layers, dropout = in_single_layers(stack)
    with mode.mode(training=True, mapped=False, key=torch.tensor(3)):
        actual = mappable(stack)(x)[0]
    with mode.mode(training=True, mapped=False, key=torch.tensor(3)):
        expected = x
        for number, layer in enumerate(layers):
            expected = layer(dropout(expected) if number else expected)[0]
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


class KeptInEvaluation(Steps):
    """Keeps its layer in evaluation mode: nothing is dropped in it."""

    def train(self, mode: bool = True) -> nn.Module:
        super().train(mode)
        self.layer.eval()
        return self


KEPT_LAYERS: dict[str, Callable[[float], nn.Module]] = {
    **NOISY_LAYERS,
    "dropout": nn.Dropout,
    "rnn": lambda p: nn.RNN(4, 4, 2, dropout=p, batch_first=True),
    "lstm of one layer": lambda p: nn.LSTM(4, 4, batch_first=True),
    "encoder": lambda p: nn.TransformerEncoder(NOISY_LAYERS["transformer"](p), 2),
    "decoder": lambda p: Decoder(nn.TransformerDecoderLayer(4, 2, 6, p, batch_first=True)),
}


class Decoder(nn.Module):
    """Reads a sequence that is its memory as well."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, h: Tensor) -> Tensor:
        return self.layer(h, h)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", KEPT_LAYERS)
def test_a_module_may_keep_a_layer_from_dropping(kind: str, engine: str) -> None:
    agrees_with_torch(partial(KeptInEvaluation, KEPT_LAYERS[kind], 0.5), engine)


class Shut(Steps):
    """Puts its layer in evaluation mode in every pass, where it is used."""

    def forward(self, x: Tensor) -> Tensor:
        self.layer.eval()
        return super().forward(x)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", KEPT_LAYERS)
def test_a_layer_that_is_put_in_evaluation_mode_in_a_pass_drops_nothing(
    kind: str, engine: str
) -> None:
    agrees_with_torch(partial(Shut, KEPT_LAYERS[kind], 0.5), engine)


class AskingItsLayer(Steps):
    """Draws noise while its layer is training."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.dropout(x, 0.5, self.layer.training))


@pytest.mark.parametrize("kind", KEPT_LAYERS)
def test_a_layer_says_whether_it_is_training_also_in_evaluation(kind: str) -> None:
    method = local(partial(AskingItsLayer, KEPT_LAYERS[kind], 0.0))
    experiment = fb.Experiment.of(method, data(), SEED)
    state, _ = fb.run_round(experiment, experiment.start(), range(3), ENGINES["sequential"])
    quiet = fb.Net.of(partial(Steps, KEPT_LAYERS[kind], 0.0), dtype=torch.float64)
    model = state.private[0]["model"]
    assert torch.equal(method.net(model, data().x), quiet(model, data().x))


def test_functional_dropout_keeps_the_mean_and_normal_noise_has_spread_one() -> None:
    net = fb.Net.of(partial(Noisy, lambda module, h: F.dropout(h, 0.3)))
    with (
        mode.mode(training=True, mapped=False, key=torch.tensor(5)),
        net._on(torch.device("cpu")).guard,
    ):
        dropped, normal = F.dropout(torch.ones(60_000), 0.3), torch.randn(60_000)
    assert dropped.mean().item() == pytest.approx(1, abs=0.014)  # a standard deviation is 0.0027
    assert set(dropped.unique().tolist()) == {0.0, torch.tensor(1 / 0.7).item()}
    assert normal.mean().item() == pytest.approx(
        0, abs=0.02
    ) and normal.std().item() == pytest.approx(1, abs=0.015)


REFUSED: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "gumbel_softmax": lambda module, h: F.gumbel_softmax(h),
    "alpha_dropout": lambda module, h: F.alpha_dropout(h, 0.5, module.training),
    "normal_": lambda module, h: h + torch.empty_like(h).normal_(),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", REFUSED)
def test_noise_that_cannot_be_repeated_is_refused_by_the_name_of_its_function(
    kind: str, engine: str
) -> None:
    with pytest.raises(fb.NetError, match=f"draws noise by {kind}, which no engine could repeat"):
        trained(local(partial(Noisy, REFUSED[kind])), engine)


def test_noise_in_evaluation_is_refused() -> None:
    # somebody forgot self.training
    attend = lambda h: F.scaled_dot_product_attention(h, h, h, dropout_p=0.5)
    for noise in (lambda module, h: F.dropout(h, 0.5), lambda module, h: attend(h)):
        net = fb.Net.of(partial(Noisy, noise))
        with pytest.raises(fb.NetError, match="outside a training step"):
            net(net.init(0), torch.ones(2, 5))


class Averaging(nn.Module):
    """Keeps a moving average of its inputs in a buffer."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.fc = how, nn.Linear(5, 3)
        self.register_buffer("average", torch.zeros(5))

    def forward(self, x: Tensor) -> Tensor:
        new = x.detach().mean(0)
        if self.training and self.how == "in place":
            self.average.mul_(0.9).add_(0.1 * new)
        elif self.training and self.how == "augmented":
            self.average *= 0.5
        elif self.training and self.how == "a part":
            self.average[0] = 3.0
        elif self.training and self.how == "assigned":
            self.average = 0.9 * self.average + 0.1 * new
        elif self.training and self.how == "normed":
            return self.fc(
                F.batch_norm(x, self.average, torch.ones_like(self.average), training=True)
            )
        elif self.training:
            torch.lerp(self.average, new, 0.1, out=self.average)
        return self.fc(x - self.average)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("how", ["in place", "augmented", "a part", "assigned", "normed", "filled"])
def test_a_buffer_that_is_written_to_is_refused_by_name_and_left_as_it_was(
    how: str, engine: str
) -> None:
    method = local(partial(Averaging, how))
    with pytest.raises(fb.NetError, match='writes to its buffer "average" in its forward pass'):
        trained(method, engine)
    assert torch.equal(
        method.net._on(torch.device("cpu")).module.average, torch.zeros(5, dtype=torch.float64)
    )


def test_a_buffer_that_a_kernel_writes_to_is_refused_by_name_and_left_as_it_was() -> None:
    class Renormed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(5, 3)
            self.register_buffer("table", torch.full((2, 5), 3.0))

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(
                x + F.embedding(torch.ones(len(x), dtype=torch.long), self.table, max_norm=1.0)
            )

    method = local(Renormed)
    with pytest.raises(fb.NetError, match='writes to its buffer "table" in its forward pass'):
        trained(method, "sequential")
    assert (method.net._on(torch.device("cpu")).module.table == 3).all()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_spectral_norm_is_refused_for_the_vectors_that_it_writes(engine: str) -> None:
    def make() -> nn.Module:
        return nn.Sequential(spectral_norm(nn.Linear(5, 6)), nn.ReLU(), nn.Linear(6, 3))

    with pytest.raises(
        fb.NetError,
        match=r"writes to its buffer "
        r'"0.parametrizations.weight.0._[uv]"',
    ):
        trained(local(make), engine)


class Tied(nn.Module):
    """The last layer uses the tensor of the first."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.first, self.middle, self.last = (
            nn.Linear(5, 5, bias=False),
            nn.Linear(5, 5),
            nn.Linear(5, 5, bias),
        )
        self.last.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.middle(torch.tanh(self.first(x)))))


@pytest.mark.parametrize("bias", [True, False])
def test_a_tensor_in_body_and_head_is_refused_with_both_its_names(bias: bool) -> None:
    with pytest.raises(
        fb.NetError,
        match=r'"last\.weight" in the head of the net and '
        r'"first\.weight" outside it',
    ):
        fb.FedPer(fb.Net.of(lambda: Tied(bias)), lr=0.1).blocks()
    with pytest.raises(fb.NetError, match='in the block "end" of the net'):
        fb.Net.of(Tied, blocks={"end": ["last"]})


@pytest.mark.parametrize("engine", ENGINES)
def test_tied_tensors_train_as_one_where_the_net_is_not_cut_between_them(engine: str) -> None:
    agrees_with_torch(Tied, engine)
    assert fb.Net.of(Tied, head="middle").body.names == ("first.weight", "last.bias")


def test_a_side_of_the_net_without_tensors_is_refused() -> None:
    with pytest.raises(fb.NetError, match="the body of the net has no tensors"):
        fb.FedPer(fb.Net.of(lambda: nn.Linear(5, 3)), lr=0.1).blocks()
    net = fb.Net.of(lambda: nn.Sequential(nn.Linear(5, 3), nn.Softmax(-1)), head="1")
    with pytest.raises(fb.NetError, match='the head of the net has no tensors: its head is "1"'):
        fb.FedPer(net, lr=0.1).blocks()


class Bare(nn.Module):
    """A parameter without a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.fc = nn.Parameter(torch.randn(5)), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x + self.token)


def test_an_instance_whose_parameters_no_seed_would_change_is_refused_with_the_fix() -> None:
    with pytest.raises(
        fb.NetError,
        match=r'"token" belongs to no layer .*\n.*Net.of\(lambda: '
        r"MyNet\(\)\)",
    ):
        fb.Net.of(Bare())
    net = fb.Net.of(Bare)
    assert not torch.equal(net.init(0)["token"], net.init(1)["token"])
    kept = Bare()
    assert torch.equal(fb.Net.of(kept, keep_weights=True).init(7)["token"], kept.token)


def test_a_frozen_parameter_is_refused_by_name() -> None:
    def make() -> nn.Module:
        module = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))
        module[0].requires_grad_(False)
        return module

    with pytest.raises(fb.NetError, match=r'"0.weight" is frozen \(requires_grad=False\)'):
        fb.Net.of(make)
