"""The 1,797 handwritten digits of UCI (8 x 8 pixels), a real data set small enough to travel with
the library.

Source: E. Alpaydin and C. Kaynak (1998), Optical Recognition of Handwritten Digits, UCI Machine
Learning Repository, https://doi.org/10.24432/C50P49, licence CC BY 4.0. These are the rows of its
test file; pixels 0..16.
"""

from __future__ import annotations

from importlib.resources import files

import numpy as np
import torch
from torch import Tensor

from fedblocks.data.pools import DataPool

SOURCE = "UCI Optical Recognition of Handwritten Digits (Alpaydin and Kaynak, 1998), CC BY 4.0"


def digits() -> tuple[Tensor, Tensor]:
    """Images [1797, 1, 8, 8] in 0..1 and labels [1797]."""
    with (
        (files("fedblocks.data") / "digits.npz").open("rb") as file,
        np.load(file, allow_pickle=False) as arrays,
    ):
        x, y = arrays["x"], arrays["y"]
    return torch.from_numpy(x.astype(np.float32)[:, None] / 16), torch.from_numpy(
        y.astype(np.int64)
    )


def digits_pool() -> DataPool:
    """The digits as a pool."""
    x, y = digits()
    return DataPool(x, y, classes=10, about={"name": "digits", "source": SOURCE})
