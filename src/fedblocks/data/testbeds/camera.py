"""Images as another camera would have taken them: a stand-in for a second data set that
is not at hand.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedblocks.core.random import derive
from fedblocks.data.partition import positive
from fedblocks.data.pools import DataPool

CAST = (1.15, 1.0, 0.8)  # red, green and blue gain: a warm lamp


def other_camera(
    pool: DataPool, side: int = 96, blur: float = 1.0, noise: float = 0.1, seed: int = 0
) -> DataPool:
    """Images [rows, 3, side, side]: enlarged, blurred (pixels), with a colour cast and
    noise (both of one spread).
    """
    positive(side=side, blur=blur)
    key = torch.Generator().manual_seed(derive(seed, "other_camera"))
    x = torch.empty(len(pool.x), pool.x.shape[1], side, side)
    gain = torch.tensor(CAST).view(-1, 1, 1) if x.shape[1] == 3 else torch.ones(1, 1, 1)
    for start in range(0, len(x), 512):
        small = pool.x[start : start + 512]
        large = F.interpolate(small, (side, side), mode="bilinear", antialias=True)
        seen = blur_images(large, blur) * gain
        x[start : start + 512] = seen + noise * torch.randn(seen.shape, generator=key)
    about = {
        **pool.about,
        "name": f"{pool.about.get('name')}_other_camera",
        "side": side,
        "blur": blur,
    }
    return replace(
        pool, x=x, about={**about, "noise": noise, "cast": list(CAST), "camera_seed": seed}
    )


def blur_images(images: Tensor, width: float) -> Tensor:
    """A Gaussian blur of some width in pixels, along rows and then columns."""
    reach = int(np.ceil(3 * width))
    line = torch.exp(-0.5 * (torch.arange(-reach, reach + 1) / width) ** 2)
    channels = images.shape[1]
    kernel = (line / line.sum()).repeat(channels, 1, 1)  # [channels, 1, length]
    padded = F.pad(images, (reach, reach, reach, reach), mode="replicate")
    across = F.conv2d(padded, kernel[:, :, None, :], groups=channels)
    return F.conv2d(across, kernel[:, :, :, None], groups=channels)
