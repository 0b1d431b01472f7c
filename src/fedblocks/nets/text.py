"""Networks for text: tokens [steps] in, a prediction of the next token for every step out."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedblocks.core.errors import UserError
from fedblocks.core.net import Net
from fedblocks.nets.recurrent import Recurrent


class WordsAndBuckets(nn.Module):
    """An embedding in two tables, the last rows apart: those of the words outside the vocabulary (OOV)."""

    def __init__(self, rows: int, buckets: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(rows - buckets, width, padding_idx=0)
        self.oov = nn.Embedding(buckets, width)

    def forward(self, x: Tensor) -> Tensor:
        first = self.words.num_embeddings  # number of the first bucket
        known, unknown = self.words(x.clamp(max=first - 1)), self.oov((x - first).clamp(min=0))
        return torch.where((x < first)[..., None], known, unknown)


def next_word(
    input_shape: Sequence[int],
    classes: int = 10_004,  # words that it can predict
    embedding: int = 96,  # numbers that stand for a word
    hidden: int = 670,  # units of the LSTM
    projection: int = 96,  # units between the LSTM and the words
    vocabulary: int | None = None,  # words that it can read; default: as many as it can predict; word 0 is padding
    buckets: int | None = None,  # OOV numbers, the last of the vocabulary, in a table of their own: embedding.oov
) -> Net:
    """The next-word LSTM of Reddi et al. (2021), without dropout: 4,053,428 parameters for 10,004 words."""
    if len(input_shape) != 1:
        raise UserError(
            f'net "next_word" needs tokens [steps], but the inputs are {list(input_shape)}',
            'use net.name = "lstm" for signals and "cnn" for images',
        )
    if min(embedding, hidden, projection) < 1:
        raise UserError("embedding, hidden and projection must be above 0", "96, 670 and 96 are the usual sizes")

    rows = vocabulary or classes
    if buckets is not None and not 0 < buckets < rows:
        raise UserError(f"buckets = {buckets}, but there are {rows} words", "use as many as the data set has")

    def make() -> nn.Module:
        layers: dict[str, nn.Module] = {
            "embedding": WordsAndBuckets(rows, buckets, embedding)
            if buckets
            else nn.Embedding(rows, embedding, padding_idx=0),
            "recurrent": Recurrent(embedding, hidden, 1),
            "projection": nn.Linear(hidden, projection),
            "words": nn.Linear(projection, classes),
        }
        return nn.Sequential(OrderedDict(layers))

    return Net.of(make, input_shape=input_shape)
