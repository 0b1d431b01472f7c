"""Every layer of torch.nn, in nets of torch's layers alone, with usual and with odd arguments:
dimensions counted from the end, the batch in the second place, inputs that a layer reads as one
example without a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Layers = Callable[[], list[nn.Module]]
Shape = tuple[int, ...]

ROW, ROWS, IMAGE, VIDEO = (6,), (4, 6), (4, 6, 6), (4, 4, 4, 4)  # of one example

_ELEMENTWISE = (
    *("CELU", "ELU", "GELU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "Identity"),
    *("LeakyReLU", "LogSigmoid", "Mish", "PReLU", "ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid"),
    *("Softplus", "Softshrink", "Softsign", "Tanh", "Tanhshrink", "Dropout"),
)
LEFT_OUT = {
    *("Module", "Container", "Sequential", "ModuleList", "ModuleDict"),  # hold others
    *("ParameterList", "ParameterDict"),
    *("AlphaDropout", "FeatureAlphaDropout", "RReLU"),  # refused for their noise
    *("FractionalMaxPool2d", "FractionalMaxPool3d", "SyncBatchNorm"),
    *("CosineSimilarity", "PairwiseDistance"),  # no output for each class
    *("MaxUnpool1d", "MaxUnpool2d", "MaxUnpool3d"),
    *("RNNBase", "RNNCellBase"),  # of no use by themselves
}


def _encoder(**options: bool) -> nn.Module:
    return nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, **options)


def _stack(**options: bool) -> nn.Module:
    return nn.TransformerEncoder(_encoder(**options), 2, enable_nested_tensor=False)


TABLE: list[tuple[str, Shape, Layers]] = [
    *((name, ROW, lambda name=name: [getattr(nn, name)()]) for name in _ELEMENTWISE),
    ("Threshold", ROW, lambda: [nn.Threshold(0.1, 0.2)]),
    ("Linear", ROW, lambda: [nn.Linear(6, 5)]),
    ("PReLU of channels", ROWS, lambda: [nn.PReLU(4)]),
    ("Softmax()", ROW, lambda: [nn.Softmax()]),
    ("Softmax() of rows", ROWS, lambda: [nn.Softmax()]),
    ("Softmax() of images", IMAGE, lambda: [nn.Softmax()]),
    *((f"Softmax({d})", ROWS, lambda d=d: [nn.Softmax(d)]) for d in (-3, -2, -1, 0, 1, 2)),
    *((f"Softmin({d})", ROW, lambda d=d: [nn.Softmin(d)]) for d in (-2, -1, 0, 1)),
    *((f"LogSoftmax({d})", ROW, lambda d=d: [nn.LogSoftmax(d)]) for d in (-2, -1, None)),
    *((f"GLU({d})", ROWS, lambda d=d: [nn.GLU(d)]) for d in (-3, -2, -1, 1)),
    ("Softmax2d", IMAGE, lambda: [nn.Softmax2d()]),
    ("Softmax2d without a batch", ROWS, lambda: [nn.Softmax2d()]),
    ("TransformerEncoderLayer", ROWS, lambda: [_encoder()]),
    ("TransformerEncoderLayer, batch first", ROWS, lambda: [_encoder(batch_first=True)]),
    ("TransformerEncoderLayer without a batch", ROW, lambda: [_encoder(batch_first=True)]),
    ("TransformerEncoder", ROWS, lambda: [_stack()]),
    ("TransformerEncoder, batch first", ROWS, lambda: [_stack(batch_first=True)]),
    ("Flatten(0, 1)", ROWS, lambda: [nn.Flatten(0, 1), nn.Tanh(), nn.Unflatten(0, (-1, 4))]),
    ("Flatten(0, 1) and a norm", ROWS, lambda: _joined(nn.BatchNorm1d(6))),
    ("Flatten(0, 1) and a softmax", ROWS, lambda: _joined(nn.Softmax(0))),
    ("Flatten(-2)", ROWS, lambda: [nn.Flatten(-2)]),
    ("Unflatten(1)", ROW, lambda: [nn.Unflatten(1, (2, 3))]),
    ("Unflatten(-1)", ROW, lambda: [nn.Unflatten(-1, (2, 3))]),
    ("Unflatten(0)", ROW, lambda: [nn.Unflatten(0, (1, -1)), nn.Softmax(1), nn.Flatten(0, 1)]),
    ("LayerNorm", ROWS, lambda: [nn.LayerNorm([4, 6])]),
    ("RMSNorm", ROWS, lambda: [nn.RMSNorm(6)]),
    ("GroupNorm", ROWS, lambda: [nn.GroupNorm(2, 4)]),
    ("GroupNorm of a row", ROW, lambda: [nn.GroupNorm(2, 6)]),
    ("LocalResponseNorm", ROWS, lambda: [nn.LocalResponseNorm(3)]),
    ("CrossMapLRN2d", IMAGE, lambda: [nn.CrossMapLRN2d(3)]),
    ("BatchNorm1d of a row", ROW, lambda: [nn.BatchNorm1d(6)]),
    ("BatchNorm1d", ROWS, lambda: [nn.BatchNorm1d(4)]),
    ("BatchNorm1d, statistics of the batch", ROWS, lambda: [_untracked()]),
    ("BatchNorm1d of a batch, and a softmax over it", ROWS, lambda: [_untracked(), nn.Softmax(-3)]),
    ("BatchNorm2d", IMAGE, lambda: [nn.BatchNorm2d(4)]),
    ("BatchNorm3d", VIDEO, lambda: [nn.BatchNorm3d(4)]),
    ("InstanceNorm1d", ROWS, lambda: [nn.InstanceNorm1d(4, affine=True)]),
    ("InstanceNorm1d without a batch", ROW, lambda: [nn.InstanceNorm1d(4)]),
    ("InstanceNorm2d", IMAGE, lambda: [nn.InstanceNorm2d(4)]),
    ("InstanceNorm2d without a batch", ROWS, lambda: [nn.InstanceNorm2d(4)]),
    ("InstanceNorm3d", VIDEO, lambda: [nn.InstanceNorm3d(4)]),
    ("InstanceNorm3d without a batch", IMAGE, lambda: [nn.InstanceNorm3d(4)]),
    ("Dropout1d", ROWS, lambda: [nn.Dropout1d()]),
    ("Dropout1d without a batch", ROW, lambda: [nn.Dropout1d()]),
    ("Dropout2d", IMAGE, lambda: [nn.Dropout2d()]),
    ("Dropout3d", VIDEO, lambda: [nn.Dropout3d()]),
    ("ChannelShuffle", IMAGE, lambda: [nn.ChannelShuffle(2)]),
    ("ChannelShuffle of rows", ROWS, lambda: [nn.ChannelShuffle(2)]),
    ("PixelShuffle", IMAGE, lambda: [nn.PixelShuffle(2)]),
    ("PixelUnshuffle", IMAGE, lambda: [nn.PixelUnshuffle(2)]),
    ("PixelUnshuffle without a batch", ROWS, lambda: [nn.PixelUnshuffle(2)]),
    ("Fold", ROWS, lambda: [nn.Fold((2, 4), (1, 2))]),
    ("Unfold", IMAGE, lambda: [nn.Unfold(2)]),
    ("Upsample", ROWS, lambda: [nn.Upsample(scale_factor=2)]),
    ("Upsample of images", IMAGE, lambda: [nn.Upsample(scale_factor=2, mode="bilinear")]),
    ("UpsamplingNearest2d", IMAGE, lambda: [nn.UpsamplingNearest2d(scale_factor=2)]),
    ("UpsamplingBilinear2d", IMAGE, lambda: [nn.UpsamplingBilinear2d(scale_factor=2)]),
    ("Embedding", ROW, lambda: [nn.Embedding(9, 6)]),
    ("EmbeddingBag", ROW, lambda: [nn.EmbeddingBag(9, 6)]),
    ("Embedding and an encoder", ROW, lambda: [nn.Embedding(9, 6), _encoder()]),
    ("Conv1d without a batch", ROW, lambda: [nn.Conv1d(4, 4, 1)]),
    ("Conv2d without a batch", ROWS, lambda: [nn.Conv2d(4, 4, 1)]),
    ("RNNCell", ROW, lambda: [nn.RNNCell(6, 5)]),
    ("GRUCell", ROW, lambda: [nn.GRUCell(6, 5)]),
    ("LPPool1d", ROWS, lambda: [nn.Sigmoid(), nn.LPPool1d(2, 2)]),
    ("LPPool1d without a batch", ROW, lambda: [nn.Sigmoid(), nn.LPPool1d(2, 2)]),
    ("LPPool2d", IMAGE, lambda: [nn.Sigmoid(), nn.LPPool2d(2, 2)]),
    ("LPPool2d without a batch", ROWS, lambda: [nn.Sigmoid(), nn.LPPool2d(2, 2)]),
    ("LPPool3d", VIDEO, lambda: [nn.Sigmoid(), nn.LPPool3d(2, 2)]),
    ("CircularPad1d without a batch", ROW, lambda: [nn.CircularPad1d(1)]),
    ("CircularPad2d without a batch", ROWS, lambda: [nn.CircularPad2d(1)]),
    ("each example moved on by one", ROWS, lambda: _shifted()),
]


def _joined(layer: nn.Module) -> list[nn.Module]:
    """A layer that sees the rows of all examples of a batch as examples."""
    return [nn.Flatten(0, 1), layer, nn.Unflatten(0, (-1, 4))]


def _untracked() -> nn.Module:
    return nn.BatchNorm1d(4, track_running_stats=False)


def _shifted() -> list[nn.Module]:
    """Each example becomes the one before it."""
    return [nn.ConstantPad3d((0, 0, 0, 0, 1, -1), 0.0)]


def _recurrent(kind: str, **options: Any) -> nn.Module:
    made: nn.Module = getattr(nn, kind)(6, 3, **options)
    return made


def _decoder(**options: bool) -> nn.Module:
    return nn.TransformerDecoderLayer(6, 2, 8, dropout=0.0, **options)


# of the table, those in which an example changes what is said of others, or that take one size
# of batch alone
MIXING = {
    *("Softmax() of rows", "Softmax(-3)", "Softmax(0)", "Softmin(-2)", "Softmin(0)"),
    *("LogSoftmax(-2)", "GLU(-3)", "Softmax2d without a batch", "TransformerEncoderLayer"),
    *("TransformerEncoderLayer without a batch", "TransformerEncoder", "Unflatten(0)"),
    *("Flatten(0, 1) and a norm", "Flatten(0, 1) and a softmax", "CrossMapLRN2d"),
    *("BatchNorm1d of a batch, and a softmax over it", "PixelUnshuffle without a batch"),
    *("Embedding and an encoder", "Conv1d without a batch", "Conv2d without a batch"),
    "each example moved on by one",
}
# nets that are one layer, of inputs that look alike, and the place of their logits
SEVERAL: dict[str, tuple[int, Shape, int | None, Callable[[], nn.Module]]] = {
    "Bilinear": (2, ROW, None, lambda: nn.Bilinear(6, 6, 3)),
    "TransformerDecoderLayer": (2, ROWS, None, _decoder),
    "TransformerDecoderLayer, batch first": (2, ROWS, None, lambda: _decoder(batch_first=True)),
    "TransformerDecoder": (2, ROWS, None, lambda: nn.TransformerDecoder(_decoder(), 2)),
    "Transformer": (2, ROWS, None, lambda: nn.Transformer(6, 2, 1, 1, 8, dropout=0.0)),
    "MultiheadAttention": (3, ROWS, 0, lambda: nn.MultiheadAttention(6, 2)),
    "MultiheadAttention without a batch": (3, ROW, 0, lambda: nn.MultiheadAttention(6, 2)),
    "MultiheadAttention, batch first": (
        *(3, ROWS, 0),
        lambda: nn.MultiheadAttention(6, 2, batch_first=True),
    ),
    "LSTMCell": (1, ROW, 0, lambda: nn.LSTMCell(6, 3)),
    **{
        f"{kind}, {'batch first' if first else 'batch second'}": (
            *(1, ROWS, 0),
            lambda kind=kind, first=first: _recurrent(kind, batch_first=first),
        )
        for kind in ("LSTM", "GRU", "RNN")
        for first in (True, False)
    },
}


def _add_dimensions() -> None:
    """Layers that exist for one, two and three dimensions: with a batch, and without one."""
    shapes = {1: ROWS, 2: IMAGE, 3: VIDEO}
    for d, shape in shapes.items():
        made: dict[str, Callable[..., nn.Module]] = {
            f"Conv{d}d": lambda kind: kind(4, 3, 2),
            f"ConvTranspose{d}d": lambda kind: kind(4, 3, 2),
            **{f"{pool}Pool{d}d": lambda kind: kind(2) for pool in ("Avg", "Max")},
            **{f"Adaptive{pool}Pool{d}d": lambda kind: kind(2) for pool in ("Avg", "Max")},
            **{f"{pad}Pad{d}d": lambda kind: kind(1) for pad in ("Zero", "Reflection", "Circular")},
            f"ReplicationPad{d}d": lambda kind: kind(1),
            f"ConstantPad{d}d": lambda kind: kind(1, 0.5),
        }
        for name, make in made.items():
            layers: Layers = lambda name=name, make=make: [make(getattr(nn, name))]
            TABLE.append((name, shape, layers))
            if "Conv" not in name:
                TABLE.append((f"{name} without a batch", shape[1:], layers))


_add_dimensions()
ROWS_OF_TABLE = {name: (shape, layers) for name, shape, layers in TABLE}


def net_of(name: str) -> nn.Module:
    """The layers between two dense ones, so that gradients pass through them."""
    shape, layers = ROWS_OF_TABLE[name]
    middle = layers()
    first = [] if is_of_tokens(name) else [nn.Linear(shape[-1], shape[-1])]
    body = nn.Sequential(*first, *middle)
    size = body(examples_of(name, 4))[0].numel()
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(size, 3))


def is_of_tokens(name: str) -> bool:
    return name.startswith("Embedding")


def examples_of(name: str, count: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(0)
    shape = (count, *ROWS_OF_TABLE[name][0])
    if is_of_tokens(name):
        return torch.randint(0, 9, shape, generator=draw)
    return torch.randn(shape, generator=draw)
