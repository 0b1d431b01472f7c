"""Networks by name: functions of the input's shape and the number of classes. Any other
module: `Net.of(module)`.
"""

from __future__ import annotations

from collections.abc import Callable

from fedblocks.core.net import Net
from fedblocks.nets.convolutional import cnn, lenet
from fedblocks.nets.dense import mlp
from fedblocks.nets.mobilenet import mobilenet_v2
from fedblocks.nets.modfl_nets import modfl_cifar, modfl_hapt, modfl_rwhar, modfl_stl, modfl_wisdm
from fedblocks.nets.modular import figure_mlp, modular_mlp
from fedblocks.nets.papers import emnist_cnn, femnist_cnn, pfl_cnn
from fedblocks.nets.recurrent import gru, lstm
from fedblocks.nets.residual import resnet
from fedblocks.nets.signals import signal_cnn
from fedblocks.nets.text import next_word
from fedblocks.nets.transformers import gpt, vit

NETS: dict[str, Callable[..., Net]] = {
    "mlp": mlp,
    "cnn": cnn,
    "lenet": lenet,
    "signal_cnn": signal_cnn,
    "resnet": resnet,
    "vit": vit,
    "lstm": lstm,
    "gru": gru,
    "gpt": gpt,
    "next_word": next_word,
    "femnist_cnn": femnist_cnn,
    "emnist_cnn": emnist_cnn,
    "pfl_cnn": pfl_cnn,
    "mobilenet_v2": mobilenet_v2,
    "modfl_cifar": modfl_cifar,
    "modfl_stl": modfl_stl,
    "modfl_hapt": modfl_hapt,
    "modfl_rwhar": modfl_rwhar,
    "modfl_wisdm": modfl_wisdm,
    "modular_mlp": modular_mlp,
    "figure_mlp": figure_mlp,
}

__all__ = [
    "NETS",
    "cnn",
    "emnist_cnn",
    "femnist_cnn",
    "figure_mlp",
    "gpt",
    "gru",
    "lenet",
    "lstm",
    "mlp",
    "mobilenet_v2",
    "modfl_cifar",
    "modfl_hapt",
    "modfl_rwhar",
    "modfl_stl",
    "modfl_wisdm",
    "modular_mlp",
    "next_word",
    "pfl_cnn",
    "resnet",
    "signal_cnn",
    "vit",
]
