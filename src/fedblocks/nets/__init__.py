"""Networks by name: functions of the input's shape and the number of classes. Any other module: `Net.of(module)`."""

from __future__ import annotations

from collections.abc import Callable

from fedblocks.core.net import Net
from fedblocks.nets.convolutional import cnn, lenet
from fedblocks.nets.dense import mlp
from fedblocks.nets.recurrent import lstm

NETS: dict[str, Callable[..., Net]] = {
    "mlp": mlp,
    "cnn": cnn,
    "lenet": lenet,
    "lstm": lstm,
}

__all__ = ["NETS", "cnn", "lenet", "lstm", "mlp"]
