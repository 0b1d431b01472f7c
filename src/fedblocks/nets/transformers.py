"""Transformers: `vit` for images, `gpt` for tokens. They are made of torch's own layers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor, nn

from fedblocks.core.checks import checked
from fedblocks.core.errors import UserError
from fedblocks.core.net import Net
from fedblocks.core.options import AtLeast, Below, Help

Layers = Annotated[int, AtLeast(1), Help("transformer layers", usual="4")]
Heads = Annotated[int, AtLeast(1), Help("of each attention", usual="4")]
Share = Annotated[float, AtLeast(0), Below(1), Help("share of dropped numbers", usual="0")]


class Patches(nn.Module):
    """An image as a sequence: a token of its own, then its patches, each with its place."""

    def __init__(self, input_shape: Sequence[int], patch: int, width: int) -> None:
        super().__init__()
        channels, height, breadth = input_shape
        self.cut = nn.Conv2d(channels, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        places = (height // patch) * (breadth // patch) + 1
        self.places = nn.Parameter(torch.randn(1, places, width) * 0.02)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.cut(x).flatten(2).transpose(1, 2)  # [batch, patches, width]
        return torch.cat([self.token.expand(len(x), -1, -1), patches], 1) + self.places


class Words(nn.Module):
    """Tokens [batch, steps] as vectors, each with its place."""

    def __init__(self, vocabulary: int, steps: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.randn(1, steps, width) * 0.02)

    def forward(self, x: Tensor) -> Tensor:
        embedded: Tensor = self.tokens(x)
        return embedded + self.places[:, : x.shape[1]]


class TransformerLayer(nn.TransformerEncoderLayer):
    """A layer of four times the width inside, normalised before each part."""

    def __init__(self, width: int, heads: int, dropout: float, causal: bool) -> None:
        options = {"activation": "gelu", "batch_first": True, "norm_first": True}
        super().__init__(width, heads, 4 * width, dropout, **options)  # type: ignore[arg-type]
        self.causal = causal

    def forward(self, src: Tensor) -> Tensor:  # type: ignore[override]
        if not self.causal:
            return super().forward(src)
        steps = src.shape[1]
        later = torch.ones(steps, steps, dtype=torch.bool, device=src.device).triu(1)
        return super().forward(src, src_mask=later, is_causal=True)


class FirstStep(nn.Module):
    """[batch, steps, width] -> [batch, width]."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0]


@checked
def vit(
    input_shape: Sequence[int],
    classes: int,
    *,
    width: Annotated[int, AtLeast(1), Help("of a patch's vector", usual="192")] = 192,
    layers: Layers = 4,
    heads: Heads = 3,
    patch: Annotated[int, AtLeast(1), Help("pixels of a patch's side", usual="4")] = 4,
    dropout: Share = 0.0,
) -> Net:
    """A small vision transformer after Dosovitskiy et al. (2021)."""
    if len(input_shape) != 3 or any(side % patch for side in input_shape[1:]):
        needs = f'net "vit" needs images whose sides are multiples of patch = {patch}'
        message = f"{needs}, but the inputs are {list(input_shape)}"
        raise UserError(message, "choose a patch that divides both sides, or pad the images")
    _check_heads(width, heads)

    def make() -> nn.Module:
        blocks = [TransformerLayer(width, heads, dropout, causal=False) for _ in range(layers)]
        parts = {"patches": Patches(input_shape, patch, width), **_named(blocks)}
        parts |= {"first": FirstStep(), "norm": nn.LayerNorm(width)}
        return nn.Sequential(OrderedDict({**parts, "fc": nn.Linear(width, classes)}))

    return Net.of(make, input_shape=input_shape)


@checked
def gpt(
    input_shape: Sequence[int],
    classes: int,
    *,
    width: Annotated[int, AtLeast(1), Help("of a token's vector", usual="256")] = 256,
    layers: Layers = 4,
    heads: Heads = 4,
    vocabulary: Annotated[
        int | None, AtLeast(1), Help("tokens that there are; default: as many as classes")
    ] = None,
    dropout: Share = 0.0,
) -> Net:
    """A small causal transformer: a prediction of the next token for every step."""
    if len(input_shape) != 1:
        message = f'net "gpt" needs tokens [steps], but the inputs are {list(input_shape)}'
        raise UserError(message, 'use net.name = "vit" for images and "gru" for signals')
    _check_heads(width, heads)

    def make() -> nn.Module:
        blocks = [TransformerLayer(width, heads, dropout, causal=True) for _ in range(layers)]
        parts: dict[str, nn.Module] = {"words": Words(vocabulary or classes, input_shape[0], width)}
        parts |= {**_named(blocks), "norm": nn.LayerNorm(width)}
        return nn.Sequential(OrderedDict({**parts, "fc": nn.Linear(width, classes)}))

    return Net.of(make, input_shape=input_shape)


def _check_heads(width: int, heads: int) -> None:
    if width % heads:
        message = f"width = {width} is not a multiple of heads = {heads}"
        raise UserError(message, "each head has an equal part of the width")


def _named(blocks: list[TransformerLayer]) -> dict[str, nn.Module]:
    return {f"layer{number}": block for number, block in enumerate(blocks, 1)}
