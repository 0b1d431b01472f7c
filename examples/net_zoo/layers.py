"""Layers of torch in chains, and layers derived from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import spectral_norm as old_spectral_norm
from torch.nn.utils import weight_norm as old_weight_norm
from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm

from net_zoo.architectures import IMAGE, TOKENS, Encoder, Transformer
from net_zoo.species import NONE, ONE, Make, Species, dense, hidden

NOISY = "draws noise that cannot be repeated"


def chain(layer: Callable[[], nn.Module]) -> Make:
    """A layer of six numbers between two dense ones."""
    return lambda: nn.Sequential(nn.Linear(5, 6), layer(), nn.Tanh(), nn.Linear(6, 3))


def normed(norm: Callable[[nn.Module], nn.Module]) -> Make:
    """A dense layer whose weights are made of others."""
    return lambda: nn.Sequential(norm(nn.Linear(5, 6)), nn.Tanh(), nn.Linear(6, 3))


def words(**options: Any) -> Make:
    return lambda: nn.Sequential(nn.Embedding(11, 5, **options), nn.Flatten(), nn.Linear(30, 3))


def instance_norm(**options: Any) -> Make:
    return lambda: nn.Sequential(
        nn.Conv1d(2, 4, 3), nn.InstanceNorm1d(4, **options), nn.Flatten(), nn.Linear(28, 3)
    )


class Doubled(nn.Linear):
    """A dense layer with a forward pass of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class DoubledNorm(nn.BatchNorm1d):
    """A BatchNorm with a forward pass of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class UsedTwice(nn.Module):
    """A BatchNorm and a Dropout under two names each."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.fc = nn.Linear(5, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.norm = self.other_norm = nn.BatchNorm1d(6)
        self.drop = self.other_drop = nn.Dropout(0.4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.drop(self.norm(torch.tanh(self.first(x))))
        return self.fc(self.other_drop(self.other_norm(torch.tanh(self.second(h)))))


class Asking(nn.MultiheadAttention):
    """Torch's attention, which is always told that it is training, with a question of its own."""

    def __init__(self) -> None:
        super().__init__(6, 1, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        h = super().forward(x[:, None], x[:, None], x[:, None], need_weights=False)[0][:, 0]
        return h * 2 if self.training else h


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(3))


def scripted() -> nn.Module:
    return nn.Sequential(torch.jit.script(nn.Linear(5, 6)), nn.Linear(6, 3))


def local_responses() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1), nn.CrossMapLRN2d(2), nn.Flatten(), nn.Linear(128, 3)
    )


def unmappable(layer: str) -> str:
    return f'layer "{layer}" of the net cannot be mapped over clients'


LAYERS = (
    Species("BatchNorm", chain(lambda: nn.BatchNorm1d(6))),
    Species(
        "BatchNorm without running statistics",
        chain(lambda: nn.BatchNorm1d(6, track_running_stats=False)),
    ),
    Species(
        "BatchNorm with `momentum=None`",
        chain(lambda: nn.BatchNorm1d(6, momentum=None)),
        NONE,
        "BatchNorm with momentum=None averages over all batches ever seen",
    ),
    Species(
        "`nn.SyncBatchNorm`",
        chain(lambda: nn.SyncBatchNorm(6)),
        NONE,
        "SyncBatchNorm joins the statistics of all processes",
    ),
    Species(
        "a BatchNorm with a forward pass of its own",
        chain(lambda: DoubledNorm(6)),
        NONE,
        'the layer "1" is a DoubledNorm, a BatchNorm1d with a forward pass of its own',
    ),
    Species(
        "`F.batch_norm` over the batch, by hand",
        dense(lambda m, x: m.fc(F.batch_norm(hidden(m, x), None, None, training=True))),
        ONE,
        "three clients train as in plain PyTorch: ",
    ),
    Species("InstanceNorm", instance_norm(affine=True), input_shape=(2, 9)),
    Species(
        "InstanceNorm with running statistics",
        instance_norm(track_running_stats=True),
        NONE,
        "InstanceNorm1d keeps running statistics",
        (2, 9),
    ),
    Species("RMSNorm", chain(lambda: nn.RMSNorm(6))),
    Species(
        "`nn.CrossMapLRN2d`",
        local_responses,
        ONE,
        unmappable("1"),
        IMAGE,
    ),
    Species("a softmax over the batch", chain(lambda: nn.Softmax(0)), ONE, unmappable("1")),
    Species("weight norm", normed(weight_norm)),
    Species(
        "weight norm, `torch.nn.utils.weight_norm`",
        normed(old_weight_norm),
        NONE,
        "the module cannot be copied: ",
    ),
    Species(
        "orthogonal weights", lambda: nn.Sequential(orthogonal(nn.Linear(5, 5)), nn.Linear(5, 3))
    ),
    Species(
        "spectral norm",
        normed(spectral_norm),
        NONE,
        "the module writes to its buffer",
    ),
    Species(
        "spectral norm, `torch.nn.utils.spectral_norm`",
        normed(old_spectral_norm),
        NONE,
        "the module writes to its buffer",
    ),
    Species("Dropout in place", chain(lambda: nn.Dropout(0.4, inplace=True))),
    Species(
        "`nn.AlphaDropout`", chain(lambda: nn.AlphaDropout(0.4)), NONE, f"AlphaDropout {NOISY}"
    ),
    Species("`nn.RReLU`", chain(nn.RReLU), NONE, f"RReLU {NOISY}"),
    Species(
        "`nn.TransformerEncoder` with dropout",
        lambda: Encoder(0.1),
        input_shape=(4, 6),
    ),
    Species(
        "`F.scaled_dot_product_attention` with dropout",
        lambda: Transformer(True, 0.1),
        input_shape=IMAGE,
    ),
    Species(
        "attention that asks whether it trains",
        chain(Asking),
        NONE,
        "they are evaluated as in plain PyTorch: ",
    ),
    Species("embedding with a padding word", words(padding_idx=0), input_shape=TOKENS),
    Species("embedding with `max_norm`", words(max_norm=1.0), ONE, unmappable("0"), TOKENS),
    Species(
        "embedding with `scale_grad_by_freq`",
        words(scale_grad_by_freq=True),
        ONE,
        unmappable("0"),
        TOKENS,
    ),
    Species(
        "`nn.EmbeddingBag`",
        lambda: nn.Sequential(nn.EmbeddingBag(11, 5), nn.Linear(5, 3)),
        input_shape=TOKENS,
    ),
    Species("`nn.GRUCell`", chain(lambda: nn.GRUCell(6, 6))),
    Species("a layer derived from `nn.Linear`", chain(lambda: Doubled(6, 6))),
    Species("BatchNorm and Dropout under two names", UsedTwice),
    Species("ReLU in place", chain(lambda: nn.ReLU(inplace=True))),
    Species("lazy layers", lazy, NONE, 'the layer "0" is lazy'),
    Species("`torch.jit.script`", scripted, NONE, "the module is compiled by torch.jit"),
)
