"""Recurrent networks for token sequences [steps] and signals [channels, steps]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from torch import Tensor, nn

from fedblocks.core.checks import checked
from fedblocks.core.errors import UserError
from fedblocks.core.net import Net
from fedblocks.core.options import AtLeast, Help


class StepsFirst(nn.Module):
    """Signals as recurrent layers take them: [batch, channels, steps] -> [batch, steps,
    channels].
    """

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


class Recurrent(nn.Module):
    """An LSTM as one link of a chain: all its outputs, [batch, steps, units]."""

    def __init__(self, inputs: int, units: int, layers: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, units, layers, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.lstm(x)[0]
        return outputs


class LastStep(nn.Module):
    """What is left of a sequence at its end: [batch, steps, units] -> [batch, units]."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, -1]


@checked
def lstm(
    input_shape: Sequence[int],
    classes: int,
    *,
    units: Annotated[int, AtLeast(1), Help("of each recurrent layer", usual="64")] = 64,
    layers: Annotated[int, AtLeast(1), Help("recurrent layers", usual="1")] = 1,
    embedding: Annotated[int, AtLeast(1), Help("numbers that stand for a token", usual="32")] = 32,
    vocabulary: Annotated[
        int | None, AtLeast(1), Help("tokens that there are; default: as many as classes")
    ] = None,
    every_step: Annotated[
        bool | None,
        Help("a prediction for every step; default: for tokens yes, for signals the last only"),
    ] = None,
) -> Net:
    """An LSTM over tokens, as in next-word prediction, or over a signal, as in activity
    recognition.
    """
    if len(input_shape) not in (1, 2):
        needs = 'net "lstm" needs tokens [steps] or signals [channels, steps]'
        message = f"{needs}, but the inputs are {list(input_shape)}"
        raise UserError(message, 'use net.name = "cnn" for images')
    tokens = len(input_shape) == 1
    all_steps = tokens if every_step is None else every_step

    def make() -> nn.Module:
        first = nn.Embedding(vocabulary or classes, embedding) if tokens else StepsFirst()
        last = [] if all_steps else [LastStep()]
        recurrent = Recurrent(embedding if tokens else input_shape[0], units, layers)
        return nn.Sequential(first, recurrent, *last, nn.Linear(units, classes))

    return Net.of(make, input_shape=input_shape)
