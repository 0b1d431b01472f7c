"""Nets as people write them: for each, on which engines it trains as in plain PyTorch,
or why it is refused.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

import fedblocks as fb
from fedblocks.engines.net_check import check

BOTH, ONE = ("sequential", "vectorised"), ("sequential",)


class Own(nn.Module):
    """A module whose layers and forward pass are arguments."""

    def __init__(self, forward: Callable[..., Any], **layers: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.run = forward
        for name, make in layers.items():
            setattr(self, name, make())

    def forward(self, x: Tensor) -> Any:
        return self.run(self, x)


class Residual(nn.Module):
    """Convolutions with a shortcut and GroupNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm, self.pool, self.fc = nn.GroupNorm(2, 4), nn.MaxPool2d(2), nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.stem(x))
        return self.fc(self.pool(h + F.relu(self.norm(self.conv(h)))).flatten(1))


class Transformer(nn.Module):
    """Patches, a token, positions and attention: torch's layer, or by hand."""

    def __init__(self, by_hand: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.by_hand, self.dropout = by_hand, dropout
        self.embed, self.token = nn.Linear(16, 8), nn.Parameter(torch.randn(1, 1, 8))
        self.places = nn.Parameter(torch.randn(1, 5, 8))
        self.norm, self.fc = nn.LayerNorm(8), nn.Linear(8, 3)
        self.attention = (
            nn.Linear(8, 24) if by_hand else nn.MultiheadAttention(8, 2, batch_first=True)
        )

    def forward(self, x: Tensor) -> Tensor:
        patches = x.unfold(2, 4, 4).unfold(3, 4, 4).flatten(1, 3).flatten(2)  # [batch, 4, 16]
        h = torch.cat([self.token.expand(len(x), -1, -1), self.embed(patches)], 1) + self.places
        if self.by_hand:
            q, k, v = (
                t.unflatten(-1, (2, 4)).transpose(1, 2) for t in self.attention(h).chunk(3, -1)
            )
            share = self.dropout if self.training else 0.0
            h = h + F.scaled_dot_product_attention(q, k, v, dropout_p=share).transpose(
                1, 2
            ).flatten(2)
        else:
            h = h + self.attention(h, h, h, need_weights=False)[0]
        return self.fc(self.norm(h[:, 0]))


class Signal(nn.Module):
    """A convolution over time with BatchNorm and Dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.Dropout(0.3)
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.drop(F.relu(self.norm(self.conv(x)))).mean(-1))


class Recurrent(nn.Module):
    """Reads a sequence of tokens."""

    def __init__(self, kind: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.embed, self.read = nn.Embedding(11, 5), kind(5, 6, batch_first=True, **options)
        self.fc = nn.Linear(12 if self.read.bidirectional else 6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.read(self.embed(x))[0][:, -1])


class TiedAutoencoder(nn.Module):
    """The decoder uses the encoder's weights, the other way round."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.fc = nn.Linear(5, 4), nn.Linear(9, 3)

    def forward(self, x: Tensor) -> Tensor:
        code = torch.tanh(self.encode(x))
        return self.fc(torch.cat([code, F.linear(code, self.encode.weight.T)], 1))


class Fourier(nn.Module):
    """Random features that stay as they were drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("omega", torch.randn(5, 8))
        self.fc = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.cos(x @ self.omega))


class Averaging(nn.Module):
    """Keeps a moving average in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(5, 3)
        self.register_buffer("average", torch.zeros(5))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.average.lerp_(x.detach().mean(0), 0.1)
        return self.fc(x - self.average)


class Counting(nn.Module):
    """Cools down with the number of its passes."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.passes = nn.Linear(5, 3), 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        return self.fc(x) * (1 if self.passes < 1000 else 0.5)


class Remembering(nn.Module):
    """Carries the last batch's mean to the next."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.last = nn.Linear(5, 3), None

    def forward(self, x: Tensor) -> Tensor:
        before, self.last = self.last, x.detach().mean(0)
        return self.fc(x if before is None else x + before)


class Inspected(nn.Module):
    """Keeps what it computed for somebody to look at, and never reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.seen = nn.Linear(5, 3), None

    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.fc(x)
        return self.seen


class Indexed(nn.Module):
    """Takes the layers of a chain one by one, and looks at what is between them."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.fc = nn.Linear(160, 3)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.features[1](self.features[0](x))
        return self.fc(torch.cat([inner.flatten(1), self.features[2](inner).flatten(1)], 1))


class Asking(nn.MultiheadAttention):
    """Torch's attention, which is always told that it is training, with a question of its own."""

    def __init__(self) -> None:
        super().__init__(5, 1, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        h = super().forward(x[:, None], x[:, None], x[:, None], need_weights=False)[0][:, 0]
        return h * 2 if self.training else h


def started() -> nn.Module:
    layer = nn.Linear(5, 3)
    nn.init.constant_(layer.weight, random.random())
    return layer


def dropped(module: Any, x: Tensor) -> Tensor:
    return module.fc(torch.ops.aten.native_dropout(hidden(module, x), 0.5, module.training)[0])


def asked(module: Any, x: Tensor) -> Tensor:
    return module.fc(module.attend(x))


def by_steps(module: Any, x: Tensor) -> Tensor:
    """Dropout where the examples are not the first dimension."""
    h = F.dropout(hidden(module, x)[None].expand(3, -1, -1) * 1, 0.5, module.training)
    return module.fc(h.mean(0))


def dense(x: Callable[[nn.Module, Tensor], Any]) -> Callable[[], nn.Module]:
    return partial(Own, x, inner=partial(nn.Linear, 5, 6), fc=partial(nn.Linear, 6, 3))


def hidden(module: Any, x: Tensor) -> Tensor:
    return torch.tanh(module.inner(x))


def routed(module: Any, x: Tensor) -> Tensor:
    """Another way through the net where the numbers say so."""
    h = hidden(module, x)
    return module.fc(h if h.mean().item() > 0 else -h)


def rolled(module: Any, x: Tensor) -> Tensor:
    h = hidden(module, x)
    return module.fc(h * random.random()) if module.training else module.fc(h)


ZOO: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], Any, tuple[str, ...]]] = {
    "residual net with GroupNorm": (Residual, (1, 8, 8), None, BOTH),
    "vision transformer": (partial(Transformer, False), (1, 8, 8), None, BOTH),
    "vision transformer by hand": (partial(Transformer, True), (1, 8, 8), None, BOTH),
    "attention with dropout": (partial(Transformer, True, 0.1), (1, 8, 8), None, BOTH),
    "GRU": (partial(Recurrent, nn.GRU), (6,), None, BOTH),
    "LSTM": (partial(Recurrent, nn.LSTM), (6,), None, BOTH),
    "bidirectional LSTM": (partial(Recurrent, nn.LSTM, bidirectional=True), (6,), None, BOTH),
    "signals with BatchNorm and Dropout": (Signal, (2, 9), None, BOTH),
    "tied autoencoder": (TiedAutoencoder, (5,), None, BOTH),
    "Fourier features": (Fourier, (5,), None, BOTH),
    "functional dropout": (
        dense(lambda m, x: m.fc(F.dropout(hidden(m, x), 0.5, m.training))),
        (5,),
        None,
        BOTH,
    ),
    "two heads": (dense(lambda m, x: (m.fc(hidden(m, x)), hidden(m, x))), (5,), 0, BOTH),
    "an object with logits": (
        dense(lambda m, x: SimpleNamespace(logits=m.fc(hidden(m, x)))),
        (5,),
        "logits",
        BOTH,
    ),
    "a branch that depends on the data": (dense(routed), (5,), None, ONE),
    "layers taken out of a chain": (Indexed, (1, 8, 8), None, BOTH),
    "dropout with examples in the second dimension": (dense(by_steps), (5,), None, ONE),
    "a tensor kept to be looked at": (Inspected, (5,), None, BOTH),
    "weight norm": (
        lambda: nn.Sequential(weight_norm(nn.Linear(5, 6)), nn.Tanh(), nn.Linear(6, 3)),
        (5,),
        None,
        BOTH,
    ),
    "insists on single precision": (
        dense(lambda m, x: m.fc(hidden(m, x) + torch.ones(6).float())),
        (5,),
        None,
        BOTH,
    ),
}


@pytest.mark.parametrize("kind", ZOO)
def test_a_net_trains_as_in_plain_pytorch_on_these_engines(kind: str) -> None:
    make, shape, output, engines = ZOO[kind]
    report = fb.check_net(fb.Net.of(make, input_shape=shape, output=output))
    assert report.engines == engines, str(report)


REFUSED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]] = {
    "moving average in a buffer": (Averaging, (5,), 'writes to its buffer "average"'),
    "spectral norm": (
        lambda: nn.Sequential(spectral_norm(nn.Linear(5, 3))),
        (5,),
        "writes to its buffer",
    ),
    "dropout in evaluation": (
        dense(lambda m, x: m.fc(F.dropout(hidden(m, x)))),
        (5,),
        "outside a training step",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_net_is_refused_with_the_reason(kind: str) -> None:
    make, shape, reason = REFUSED[kind]
    report = fb.check_net(fb.Net.of(make, input_shape=shape))
    assert reason in report.refusal and report.fix and report.engines == (), str(report)


STARTS = "the start depends on the seed alone"
TRAINS, EVALUATES = (
    "three clients train as in plain PyTorch",
    "they are evaluated as in plain PyTorch",
)
REPEATS, ISOLATES = (
    "a client trains alike before and after others",
    "another client's data change nothing",
)
LEAVES = "a forward pass leaves nothing behind"
WRONG: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], dict[str, str]]] = {
    "a counter": (Counting, (5,), {LEAVES: 'it changes its own attribute "passes"'}),
    "a batch that is remembered": (
        Remembering,
        (5,),
        {TRAINS: "differs by", REPEATS: "differs by"},
    ),
    "what others left behind": (Remembering, (5,), {ISOLATES: "differs by"}),
    "Python's own randomness": (dense(rolled), (5,), {TRAINS: "differs by", REPEATS: "differs by"}),
    "a start by Python's own randomness": (started, (5,), {STARTS: '"weight" was drawn'}),
    "noise by the back door": (
        dense(dropped),
        (5,),
        {LEAVES: "it draws from torch's common randomness"},
    ),
    "attention that asks whether it trains": (
        partial(Own, asked, attend=Asking, fc=partial(nn.Linear, 5, 3)),
        (5,),
        {EVALUATES: "the losses differ by"},
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_net_that_would_give_other_numbers_is_found(kind: str) -> None:
    make, shape, reasons = WRONG[kind]
    report = fb.check_net(fb.Net.of(make, input_shape=shape))
    wrong = {one.says: one.wrong.get("sequential", "") for one in report.findings}
    assert "sequential" not in report.engines
    assert all(part in wrong[says] for says, part in reasons.items()), str(report)
    with pytest.raises(fb.NetError, match="would not train as in plain PyTorch"):
        report.require("sequential")


def test_lazy_layers_are_refused_when_the_net_is_made() -> None:
    with pytest.raises(fb.NetError, match='the layer "0" is lazy'):
        fb.Net.of(lambda: nn.Sequential(nn.LazyLinear(3)))


def test_a_check_takes_at_most_two_seconds_of_a_processor_and_nothing_the_second_time() -> None:
    check._reports.clear()
    begun = time.process_time()
    report = fb.check_net(fb.Net.of(Signal, input_shape=(2, 9)))
    middle = time.process_time()
    again = fb.check_net(fb.Net.of(Signal, input_shape=(2, 9)))  # another object, the same code
    assert again is report and middle - begun < 2 and time.process_time() - middle < 0.1


def test_a_module_that_runs_into_infinity_by_itself_is_neither_right_nor_wrong() -> None:
    report = fb.check_net(
        fb.Net.of(dense(lambda m, x: m.fc(torch.log(hidden(m, x)))), input_shape=(5,))
    )
    assert "not finite" in report.unclear and report.engines == BOTH
    report.require("vectorised")


def test_inputs_must_come_from_somewhere() -> None:
    net = fb.Net.of(dense(lambda m, x: m.fc(hidden(m, x))))
    with pytest.raises(fb.NetError, match="nothing says what the inputs"):
        fb.check_net(net)
    assert fb.check_net(net, torch.ones(2, 5), torch.zeros(2, dtype=torch.long)).engines == BOTH
