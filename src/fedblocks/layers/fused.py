"""Torch's own kernels for whole layers, of which some are for evaluation alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def as_if_training(layer: nn.Module) -> Iterator[None]:
    """Or a layer without noise takes a kernel that cannot be mapped or trained, wherever it is in
    evaluation mode.
    """
    before = layer.training
    layer.training = True
    try:
        yield
    finally:
        layer.training = before
