"""Turn images: exactly by quarter turns, else with bilinear interpolation."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from fedblocks.core.errors import DataError


def rotate_images(images: Tensor, degrees: float) -> Tensor:
    """Images [rows, channels, height, width] turned counter-clockwise about their
    centre; corners become 0.
    """
    if images.dim() != 4 or not images.is_floating_point():
        message = f"cannot rotate inputs of shape {list(images.shape)}, type {images.dtype}"
        raise DataError(
            message,
            "images are float [rows, channels, height, width]; add a channel with x[:, None]",
        )
    turns, rest = divmod(degrees, 90)
    if rest:
        return bilinear(images, degrees)
    if turns % 2 and images.shape[-1] != images.shape[-2]:
        raise DataError(
            f"a quarter turn of {list(images.shape[-2:])} images",
            "use square images, or 180 degrees",
        )
    return torch.rot90(images, int(turns) % 4, (-2, -1))


def bilinear(images: Tensor, degrees: float) -> Tensor:
    """Rotation by any angle."""
    if not len(images):
        return images
    height, width = images.shape[-2:]
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    # where each output pixel comes from, in coordinates that run from -1 to 1 along both sides
    source = [[cos, -sin * height / width, 0.0], [sin * width / height, cos, 0.0]]
    turn = torch.tensor(source, dtype=images.dtype, device=images.device).expand(len(images), 2, 3)
    grid = F.affine_grid(turn, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
