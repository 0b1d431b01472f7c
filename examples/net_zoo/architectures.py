"""Whole nets of the usual kinds."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from net_zoo.species import ONE, Species, classify, dense, hidden


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
        return self.fc(self.norm((h + self._attend(h))[:, 0]))

    def _attend(self, h: Tensor) -> Tensor:
        if not self.by_hand:
            return self.attention(h, h, h, need_weights=False)[0]
        q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in self.attention(h).chunk(3, -1))
        share = self.dropout if self.training else 0.0
        seen = F.scaled_dot_product_attention(q, k, v, dropout_p=share)
        return seen.transpose(1, 2).flatten(2)


class Encoder(nn.Module):
    """Torch's transformer layers over a sequence of vectors."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=dropout, batch_first=True)
        self.read = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.fc = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.read(x).mean(1))


class Signal(nn.Module):
    """A convolution over time with BatchNorm and Dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.Dropout(0.3)
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.drop(F.relu(self.norm(self.conv(x)))).mean(-1))


class TokenReader(nn.Module):
    """Reads a sequence of tokens."""

    def __init__(self, kind: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.embed, self.read = nn.Embedding(11, 5), kind(5, 6, batch_first=True, **options)
        self.fc = nn.Linear(12 if self.read.bidirectional else 6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.read(self.embed(x))[0][:, -1])


class PackedRecurrent(nn.Module):
    """Reads sequences of several lengths, packed."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.fc = nn.LSTM(4, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        lengths = torch.full((len(x),), 2)
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return self.fc(self.read(packed)[1][0][-1])


class TiedAutoencoder(nn.Module):
    """The decoder uses the encoder's weights, the other way round."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.fc = nn.Linear(5, 4), nn.Linear(9, 3)

    def forward(self, x: Tensor) -> Tensor:
        code = torch.tanh(self.encode(x))
        return self.fc(torch.cat([code, F.linear(code, self.encode.weight.T)], 1))


class TiedWords(nn.Module):
    """The last layer has the weights of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.mix, self.out = nn.Embedding(11, 5), nn.Linear(5, 5), nn.Linear(5, 11)
        self.out.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.mix(self.words(x))))


class TakenApart(nn.Module):
    """Takes the layers of a chain one by one, and looks at what is between them."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.fc = nn.Linear(160, 3)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.features[1](self.features[0](x))
        return self.fc(torch.cat([inner.flatten(1), self.features[2](inner).flatten(1)], 1))


IMAGE, TOKENS = (1, 8, 8), (6,)
ARCHITECTURES = (
    Species("residual net with GroupNorm", Residual, input_shape=IMAGE),
    Species(
        "vision transformer with `nn.MultiheadAttention`",
        partial(Transformer, by_hand=False),
        input_shape=IMAGE,
    ),
    Species(
        "vision transformer with `F.scaled_dot_product_attention`",
        partial(Transformer, by_hand=True),
        input_shape=IMAGE,
    ),
    Species("`nn.TransformerEncoder` without dropout", Encoder, input_shape=(4, 6)),
    Species("LSTM over tokens", partial(TokenReader, nn.LSTM), input_shape=TOKENS),
    Species(
        "bidirectional LSTM",
        partial(TokenReader, nn.LSTM, bidirectional=True),
        input_shape=TOKENS,
    ),
    Species("GRU", partial(TokenReader, nn.GRU), input_shape=TOKENS),
    Species("plain RNN, stacked", partial(TokenReader, nn.RNN, num_layers=2), input_shape=TOKENS),
    Species(
        "LSTM over packed sequences",
        PackedRecurrent,
        ONE,
        "cannot be mapped over clients (vmap: It looks like you're calling .item() on a Tensor)",
        (3, 4),
    ),
    Species("1-D convolutions with BatchNorm and Dropout", Signal, input_shape=(2, 9)),
    Species("autoencoder and classifier with tied weights", TiedAutoencoder),
    Species("first and last layer with the same weights", TiedWords, input_shape=TOKENS),
    Species("layers taken out of an `nn.Sequential`", TakenApart, input_shape=IMAGE),
    Species(
        "two heads, `Net.of(..., output=0)`",
        dense(lambda m, x: (m.fc(hidden(m, x)), hidden(m, x))),
        output=0,
    ),
    Species(
        'an object with logits, `Net.of(..., output="logits")`',
        dense(lambda m, x: SimpleNamespace(logits=classify(m, x))),
        output="logits",
    ),
)
