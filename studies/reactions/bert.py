"""BERT as a plain module (Devlin et al., 2019). Its tensors have the names that the package
transformers gives them, so that weights stored by that package fit.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

PADDING = 0  # the token of places without one
Config = dict[str, Any]  # the table that a model of transformers is stored with


class Embeddings(nn.Module):
    """Tokens [batch, steps] as vectors, each with its place."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config["hidden_size"]
        self.word_embeddings = nn.Embedding(config["vocab_size"], width)
        self.position_embeddings = nn.Embedding(config["max_position_embeddings"], width)
        self.token_type_embeddings = nn.Embedding(config["type_vocab_size"], width)
        self.LayerNorm = nn.LayerNorm(width, config["layer_norm_eps"])

    def forward(self, tokens: Tensor) -> Tensor:
        place = torch.arange(tokens.shape[-1], device=tokens.device)
        words = self.word_embeddings(tokens) + self.token_type_embeddings(torch.zeros_like(place))
        normed: Tensor = self.LayerNorm(words + self.position_embeddings(place))
        return normed


class SelfAttention(nn.Module):
    """Queries, keys and values of all heads, and what they give."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config["hidden_size"]
        self.heads = config["num_attention_heads"]
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (self.split(layer(x)) for layer in (self.query, self.key, self.value))
        return F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2)

    def split(self, x: Tensor) -> Tensor:
        """By heads: [batch, heads, steps, width / heads]."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class Beside(nn.Module):
    """A dense layer whose result is added to another tensor, and normed."""

    def __init__(self, inputs: int, config: Config) -> None:
        super().__init__()
        self.dense = nn.Linear(inputs, config["hidden_size"])
        self.LayerNorm = nn.LayerNorm(config["hidden_size"], config["layer_norm_eps"])

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        normed: Tensor = self.LayerNorm(self.dense(x) + other)
        return normed


class Layer(nn.Module):
    """Attention, then two dense layers for every place."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width, inner = config["hidden_size"], config["intermediate_size"]
        attention = {"self": SelfAttention(config), "output": Beside(width, config)}
        self.attention = nn.ModuleDict(attention)
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(width, inner)})
        self.output = Beside(inner, config)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.attention["output"](self.attention["self"](x, mask), x)
        result: Tensor = self.output(F.gelu(self.intermediate["dense"](x)), x)
        return result


class Bert(nn.Module):
    """Tokens [batch, steps] -> the last layer's vectors [batch, steps, width]. There is no dropout:
    what is trained here are small adapters.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        if config["hidden_act"] != "gelu":
            raise SystemExit(f"hidden_act = {config['hidden_act']} is not gelu")
        layers = nn.ModuleList(Layer(config) for _ in range(config["num_hidden_layers"]))
        self.embeddings = Embeddings(config)
        self.encoder = nn.ModuleDict({"layer": layers})

    def forward(self, tokens: Tensor) -> Tensor:
        mask = (tokens != PADDING)[:, None, None]  # [batch, 1, 1, steps]
        x: Tensor = self.embeddings(tokens)
        for layer in self.encoder["layer"]:
            x = layer(x, mask)
        return x


class Classifier(nn.Module):
    """A dense layer on the vector of the first place."""

    def __init__(self, config: Config, classes: int) -> None:
        super().__init__()
        self.bert = Bert(config)
        self.classifier = nn.Linear(config["hidden_size"], classes)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.bert(tokens)[:, 0])
        return logits
