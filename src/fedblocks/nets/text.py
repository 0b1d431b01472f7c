"""Networks for text: tokens [steps] in, a prediction of the next token for every step out."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor, nn

from fedblocks.core.checks import checked
from fedblocks.core.errors import UserError
from fedblocks.core.net import Net
from fedblocks.core.options import AtLeast, Help
from fedblocks.nets.recurrent import Recurrent


class WordsAndBuckets(nn.Module):
    """An embedding in two tables, the last rows apart: those of the words outside the
    vocabulary (OOV).
    """

    def __init__(self, rows: int, buckets: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(rows - buckets, width, padding_idx=0)
        self.oov = nn.Embedding(buckets, width)

    def forward(self, x: Tensor) -> Tensor:
        first = self.words.num_embeddings  # number of the first bucket
        known = self.words(x.clamp(max=first - 1))  # [batch, steps, width]
        unknown = self.oov((x - first).clamp(min=0))
        return torch.where((x < first)[..., None], known, unknown)


@checked
def next_word(
    input_shape: Sequence[int],
    classes: int = 10_004,  # words that it can predict
    *,
    embedding: Annotated[int, AtLeast(1), Help("numbers that stand for a word", usual="96")] = 96,
    hidden: Annotated[int, AtLeast(1), Help("units of the LSTM", usual="670")] = 670,
    projection: Annotated[
        int, AtLeast(1), Help("units between the LSTM and the words", usual="96")
    ] = 96,
    vocabulary: Annotated[
        int | None,
        AtLeast(1),
        Help("words that it can read; default: as many as it can predict; word 0 is padding"),
    ] = None,
    buckets: Annotated[
        int | None,
        AtLeast(1),
        Help("OOV numbers, the last of the vocabulary, in a table of their own: embedding.oov"),
    ] = None,
) -> Net:
    """The next-word LSTM of Reddi et al. (2021), without dropout: 4,053,428 parameters
    for 10,004 words.
    """
    if len(input_shape) != 1:
        raise UserError(
            f'net "next_word" needs tokens [steps], but the inputs are {list(input_shape)}',
            'use net.name = "lstm" for signals and "cnn" for images',
        )
    rows = vocabulary or classes
    if buckets is not None and buckets >= rows:
        message = f"buckets = {buckets}, but there are {rows} words"
        raise UserError(message, "use as many as the data set has")

    def make() -> nn.Module:
        if buckets:
            words: nn.Module = WordsAndBuckets(rows, buckets, embedding)
        else:
            words = nn.Embedding(rows, embedding, padding_idx=0)
        layers: dict[str, nn.Module] = {
            "embedding": words,
            "recurrent": Recurrent(embedding, hidden, 1),
            "projection": nn.Linear(hidden, projection),
            "words": nn.Linear(projection, classes),
        }
        return nn.Sequential(OrderedDict(layers))

    return Net.of(make, input_shape=input_shape)
