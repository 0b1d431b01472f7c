"""MobileNet-v2 (Sandler et al., 2018), with torchvision's names, so that its weights
can be loaded from a file.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from fedblocks.core.checks import checked
from fedblocks.core.errors import UserError
from fedblocks.core.net import Net
from fedblocks.core.options import AtLeast, Below, Help
from fedblocks.core.special_files import refuse_special
from fedblocks.nets.convolutional import image_shape

# Expansion, channels, blocks, stride of the first block: table 2 of the paper.
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
FIRST, LAST = 32, 1280  # channels of the first and of the last convolution


@checked
def mobilenet_v2(
    input_shape: Sequence[int],
    classes: int,
    weights: Annotated[
        str | None,
        Help("a safetensors file with torchvision's names; the classifier is not taken from it"),
    ] = None,
    dropout: Annotated[
        float, AtLeast(0), Below(1), Help("before the classifier", usual="0.2")
    ] = 0.2,
) -> Net:
    """Inverted residuals with BatchNorm: 2,236,682 parameters for 10 classes; images
    are not resized.
    """
    colours, _, _ = image_shape("mobilenet_v2", input_shape, least=8)
    loaded = {} if weights is None else _load(Path(weights), _module(colours, classes, dropout))

    def make() -> nn.Module:
        module = _module(colours, classes, dropout)
        module.load_state_dict(loaded, strict=False)
        return module

    return Net.of(make)


def _module(colours: int, classes: int, dropout: float) -> nn.Module:
    before = FIRST
    features: list[nn.Module] = [_convolution(colours, FIRST, 3, stride=2)]
    for expansion, channels, blocks, stride in STAGES:
        for number in range(blocks):
            features.append(
                InvertedResidual(before, channels, stride if number == 0 else 1, expansion)
            )
            before = channels
    features.append(_convolution(before, LAST, 1))
    links: list[tuple[str, nn.Module]] = [
        ("features", nn.Sequential(*features)),
        ("pool", nn.AdaptiveAvgPool2d(1)),
        ("flatten", nn.Flatten()),
        ("classifier", nn.Sequential(nn.Dropout(dropout), nn.Linear(LAST, classes))),
    ]
    module = nn.Sequential(OrderedDict(links))
    module.apply(_start)
    return module


class InvertedResidual(nn.Module):
    """Widen, convolve each channel alone, narrow; added to the input where the shapes allow it."""

    def __init__(self, before: int, after: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = before * expansion
        widen = [_convolution(before, wide, 1)] if expansion > 1 else []
        narrow = [nn.Conv2d(wide, after, 1, bias=False), nn.BatchNorm2d(after)]
        self.conv = nn.Sequential(*widen, _convolution(wide, wide, 3, stride, groups=wide), *narrow)
        self.added = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        return x + y if self.added else y


def _convolution(
    before: int, after: int, kernel: int, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    layer = nn.Conv2d(before, after, kernel, stride, (kernel - 1) // 2, groups=groups, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(after), nn.ReLU6())


def _start(layer: nn.Module) -> None:
    """Random weights as torchvision's."""
    if isinstance(layer, nn.Conv2d):
        nn.init.kaiming_normal_(layer.weight, mode="fan_out")
    elif isinstance(layer, nn.Linear):
        nn.init.normal_(layer.weight, 0, 0.01)
        nn.init.zeros_(layer.bias)


def _load(path: Path, module: nn.Module) -> dict[str, Tensor]:
    """The tensors of a file for all layers but the classifier, each of the right name and shape."""
    refuse_special(path)
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"weights file {path} cannot be read: {error}", "give a safetensors file"
        ) from error
    wanted = {k: v for k, v in module.state_dict().items() if not k.startswith("classifier.")}
    needed = [k for k in wanted if not k.endswith("num_batches_tracked")]
    wrong = [k for k in needed if k not in tensors or tensors[k].shape != wanted[k].shape]
    if wrong:
        have = list(tensors[wrong[0]].shape) if wrong[0] in tensors else "missing"
        message = f'{path}: "{wrong[0]}" is {have}, the net has {list(wanted[wrong[0]].shape)}'
        raise UserError(message, "give a file with the tensors of torchvision's mobilenet_v2")
    return {k: tensors[k] for k in needed}
