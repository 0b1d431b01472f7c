"""EfficientNet-Lite0 as a plain module (Tan and Le, 2019; the Lite variant has no squeezing and
ReLU6). Its tensors have the names that the package efficientnet_lite_pytorch gives them, without
the underscores that these begin with.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from torch import Tensor, nn

PIXEL_MEAN, PIXEL_SCALE = 127.0, 128.0  # of the images that it was trained on


class Stage(NamedTuple):
    """Blocks of one kind; the first of them has the stride."""

    repeats: int
    kernel: int
    stride: int
    expansion: int
    outputs: int


STEM, LAST = 32, 1280
STAGES = (
    Stage(1, 3, 1, 1, 16),
    Stage(2, 3, 2, 6, 24),
    Stage(2, 5, 2, 6, 40),
    Stage(3, 3, 2, 6, 80),
    Stage(3, 5, 1, 6, 112),
    Stage(4, 5, 2, 6, 192),
    Stage(1, 3, 1, 6, 320),
)


def padding(kernel: int, stride: int) -> nn.ZeroPad2d:
    """So that sides shrink by the stride alone, as in TensorFlow; sides must be multiples of it."""
    before = (kernel - stride) // 2
    after = kernel - stride - before
    return nn.ZeroPad2d((before, after, before, after))


def norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3)


class Block(nn.Module):
    """Widen, filter every channel for itself, narrow; the input is added where it fits."""

    def __init__(self, inputs: int, outputs: int, stride: int, stage: Stage) -> None:
        super().__init__()
        inner = inputs * stage.expansion
        self.is_beside = stride == 1 and inputs == outputs
        self.is_wider = stage.expansion > 1
        if self.is_wider:
            self.expand_conv = nn.Conv2d(inputs, inner, 1, bias=False)
            self.bn0 = norm(inner)
        self.pad = padding(stage.kernel, stride)
        self.depthwise_conv = nn.Conv2d(
            inner, inner, stage.kernel, stride, groups=inner, bias=False
        )
        self.bn1 = norm(inner)
        self.project_conv = nn.Conv2d(inner, outputs, 1, bias=False)
        self.bn2 = norm(outputs)
        self.relu = nn.ReLU6()

    def forward(self, x: Tensor) -> Tensor:
        wide = self.relu(self.bn0(self.expand_conv(x))) if self.is_wider else x
        filtered = self.relu(self.bn1(self.depthwise_conv(self.pad(wide))))
        narrow: Tensor = self.bn2(self.project_conv(filtered))
        return narrow + x if self.is_beside else narrow


class Lite0(nn.Module):
    """Images [batch, 3, 32, 32] of bytes from 0 to 255, made larger -> logits [batch, classes]."""

    def __init__(self, side: int, classes: int) -> None:
        super().__init__()
        self.enlarge = nn.Upsample((side, side), mode="bilinear", align_corners=False)
        self.pad = padding(3, 2)
        self.conv_stem = nn.Conv2d(3, STEM, 3, 2, bias=False)
        self.bn0 = norm(STEM)
        self.blocks = nn.Sequential(OrderedDict(enumerate_blocks()))
        self.conv_head = nn.Conv2d(STAGES[-1].outputs, LAST, 1, bias=False)
        self.bn1 = norm(LAST)
        self.relu = nn.ReLU6()
        self.fc = nn.Linear(LAST, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.features(x))
        return logits

    def features(self, x: Tensor) -> Tensor:
        """[batch, 1280]"""
        x = self.enlarge((x - PIXEL_MEAN) / PIXEL_SCALE)
        x = self.relu(self.bn0(self.conv_stem(self.pad(x))))
        x = self.relu(self.bn1(self.conv_head(self.blocks(x))))
        return x.mean((-2, -1))


def enumerate_blocks() -> list[tuple[str, nn.Module]]:
    blocks: list[nn.Module] = []
    inputs = STEM
    for stage in STAGES:
        for repeat in range(stage.repeats):
            stride = stage.stride if repeat == 0 else 1
            blocks.append(Block(inputs, stage.outputs, stride, stage))
            inputs = stage.outputs
    return [(str(number), block) for number, block in enumerate(blocks)]
