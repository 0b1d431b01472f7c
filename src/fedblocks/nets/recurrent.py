"""Recurrent networks for token sequences [steps] and signals [channels, steps]."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


class Gated(nn.Module):
    """A GRU as one link of a chain: all its outputs, [batch, steps, units]."""

    def __init__(self, inputs: int, units: int, layers: int) -> None:
        super().__init__()
        self.gru = nn.GRU(inputs, units, layers, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.gru(x)[0]
        return outputs


class LastStep(nn.Module):
    """What is left of a sequence at its end: [batch, steps, units] -> [batch, units]."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, -1]


Units = Annotated[int, AtLeast(1), Help("of each recurrent layer", usual="64")]
Layers = Annotated[int, AtLeast(1), Help("recurrent layers", usual="1")]
Embedding = Annotated[int, AtLeast(1), Help("numbers that stand for a token", usual="32")]
Vocabulary = Annotated[
    int | None, AtLeast(1), Help("tokens that there are; default: as many as classes")
]
EveryStep = Annotated[
    bool | None,
    Help("a prediction for every step; default: for tokens yes, for signals the last only"),
]


@checked
def lstm(
    input_shape: Sequence[int],
    classes: int,
    *,
    units: Units = 64,
    layers: Layers = 1,
    embedding: Embedding = 32,
    vocabulary: Vocabulary = None,
    every_step: EveryStep = None,
) -> Net:
    """An LSTM over tokens, as in next-word prediction, or over a signal, as in activity
    recognition.
    """
    tokens = _has_tokens("lstm", input_shape)
    recurrent = lambda: Recurrent(embedding if tokens else input_shape[0], units, layers)
    words = (vocabulary or classes, embedding) if tokens else None
    return _chain(input_shape, recurrent, words, every_step, (units, classes))


@checked
def gru(
    input_shape: Sequence[int],
    classes: int,
    *,
    units: Units = 64,
    layers: Layers = 1,
    embedding: Embedding = 32,
    vocabulary: Vocabulary = None,
    every_step: EveryStep = None,
) -> Net:
    """Gated recurrent units over tokens or over a signal."""
    tokens = _has_tokens("gru", input_shape)
    recurrent = lambda: Gated(embedding if tokens else input_shape[0], units, layers)
    words = (vocabulary or classes, embedding) if tokens else None
    return _chain(input_shape, recurrent, words, every_step, (units, classes))


def _has_tokens(name: str, input_shape: Sequence[int]) -> bool:
    if len(input_shape) not in (1, 2):
        needs = f'net "{name}" needs tokens [steps] or signals [channels, steps]'
        message = f"{needs}, but the inputs are {list(input_shape)}"
        raise UserError(message, 'use net.name = "cnn" for images')
    return len(input_shape) == 1


def _chain(
    input_shape: Sequence[int],
    recurrent: Callable[[], nn.Module],
    words: tuple[int, int] | None,
    every_step: bool | None,
    head: tuple[int, int],
) -> Net:
    """A sequence of vectors, what a recurrent layer makes of it, and a prediction."""
    all_steps = words is not None if every_step is None else every_step

    def make() -> nn.Module:
        first = StepsFirst() if words is None else nn.Embedding(*words)
        last = [] if all_steps else [LastStep()]
        return nn.Sequential(first, recurrent(), *last, nn.Linear(*head))

    return Net.of(make, input_shape=input_shape)
