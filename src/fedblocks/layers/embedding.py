"""Tables that are read by whole numbers: a number outside its table is never a row of somebody
else's.

Mapped over clients, the tables of a stack stand one behind the other, and a number past the end of
one would read the next client's. On a CPU such a number raises the error that it raises for one
client. A GPU cannot raise without being waited for, and its own check ends the whole process: there
the row is NaN, so that this client's update is refused and its score is no number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedblocks.core.mode import current

# of `F.embedding`, in its order
_SETTINGS = ("padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")


class Embedding(nn.Embedding):
    """An embedding whose padding row takes no gradient when mapped over clients, either."""

    def forward(self, input: Tensor) -> Tensor:
        settings = (self.padding_idx, self.max_norm, self.norm_type, self.scale_grad_by_freq)
        rows = embed(input, self.weight, *settings)
        if self.padding_idx is None or not current().mapped:
            return rows
        return torch.where((input == self.padding_idx)[..., None], rows.detach(), rows)


def embed(input: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """`F.embedding`: whole numbers [...] -> rows of the weight [..., width]. Its gradient is never
    sparse, as which most operations cannot take it.
    """
    settings = {**dict(zip(_SETTINGS, args, strict=False)), **kwargs, "sparse": False}
    if torch.compiler.is_exporting() or not (current().mapped or input.is_cuda):
        return F.embedding(input, weight, **settings)
    is_outside = (input < 0) | (input >= len(weight))
    if _can_raise(input):
        far = torch.where(is_outside, torch.iinfo(input.dtype).min // 2, input)
        return F.embedding(far, weight, **settings)
    rows = F.embedding(torch.where(is_outside, 0, input), weight, **settings)
    return torch.where(is_outside[..., None], torch.nan, rows)


def embed_from(weight: Tensor, indices: Tensor, padding_idx: int = -1, *flags: bool) -> Tensor:
    """`torch.embedding`, which takes the table first; no padding is -1."""
    return embed(indices, weight, None if padding_idx == -1 else padding_idx, None, 2.0, *flags)


def one_hot(input: Tensor, num_classes: int = -1) -> Tensor:
    """`F.one_hot`, which for a stack of clients leaves out its check."""
    if current().mapped and num_classes > 0 and _can_raise(input):
        embed(input, torch.zeros(num_classes, 1))
    return F.one_hot(input, num_classes)


def _can_raise(input: Tensor) -> bool:
    """Whether an operation on this device may look at numbers and fail."""
    return not input.is_cuda


# what takes the place of torch's functions in code that nobody here has read
TABLES: dict[Any, Callable[..., Any]] = {
    F.embedding: embed,
    torch.embedding: embed_from,
    F.one_hot: one_hot,
}


class OwnTables(TorchFunctionMode):
    """Inside, functions of torch read no table but the client's own."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return TABLES.get(func, func)(*args, **(kwargs or {}))
