"""Examples with a label for each step: sequences of two steps, some of them padded."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from fedblocks.core.losses import IGNORE
from fedblocks.core.net import Net
from fedblocks.core.task import Task
from fedblocks.data.federation import Federation
from fedblocks.nets.recurrent import Recurrent
from fedblocks.testing.example import Example
from fedblocks.testing.federations import CLASSES, FEATURES

PADDED = 5  # one example in so many has one step only


def sequence_example(example: Example) -> Example:
    """The same method with the same clients, whose examples are sequences."""
    net = NETS.get(example.name)
    options = {**example.options, **({"net": net()} if net is not None else {})}
    return replace(example, options=options, federation=with_steps(example.federation))


def with_steps(classes: Federation) -> Federation:
    """Each example, and half of it as a second step with the same label, or padding."""
    x = torch.stack([classes.x, classes.x / 2], 1)  # [rows, 2, features]
    y = torch.stack([classes.y, classes.y], 1)
    y[torch.arange(len(y)) % PADDED == 0, 1] = IGNORE
    return replace(classes, x=x, y=y, task=Task("sequence-labelling"))


def tagging_net() -> Net:
    """Steps embedded, read by an LSTM, and decoded one by one."""
    layers = lambda: nn.Sequential(
        nn.Linear(FEATURES, 3), Recurrent(3, 4, 1), nn.Linear(4, CLASSES)
    )
    return Net.of(layers, dtype=torch.float64)


def normed_tagging_net() -> Net:
    """A perceptron for each step, with a normalisation of the step."""
    layers = lambda: nn.Sequential(
        nn.Linear(FEATURES, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, CLASSES)
    )
    return Net.of(layers, dtype=torch.float64)


# where the net of the example reads one shape alone; perceptrons take any number of steps
NETS = {
    "fedbn": normed_tagging_net,
    "dynamic_routing": tagging_net,
    "flow": tagging_net,
    "flow_v2": tagging_net,
}
