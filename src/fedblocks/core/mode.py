"""What a layer may know about the call it is in: training or not, which rows are real,
where noise comes from.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

from fedblocks.core.random import fold

if TYPE_CHECKING:
    from fedblocks.core.task import Task


@dataclass
class Mode:
    """The circumstances of one forward pass; layers with statistics or noise ask for it."""

    training: bool = False
    mapped: bool = False  # inside `vmap`, where fused recurrent kernels cannot go
    mask: Tensor | None = None  # [batch], 1 = real; None: every row is real
    key: Tensor | None = None  # the source of noise
    task: Task | None = None  # what outputs mean; None: classes
    draws: int = field(default=0, compare=False)

    def next_key(self) -> Tensor:
        """A key of its own for every layer that draws noise in this pass."""
        if self.key is None:
            raise RuntimeError("a layer asked for noise outside a training step")
        self.draws += 1
        return fold(self.key, self.draws)


_mode: ContextVar[Mode] = ContextVar("mode", default=Mode())  # noqa: B039 - the default is never written to


def current() -> Mode:
    """The mode of the pass that is running."""
    return _mode.get()


@contextmanager
def mode(
    training: bool,
    mapped: bool,
    mask: Tensor | None = None,
    key: Tensor | None = None,
    task: Task | None = None,
) -> Iterator[None]:
    """Run one forward pass under these circumstances; a pass inside another has its task."""
    token = _mode.set(Mode(training, mapped, mask, key, task or current().task))
    try:
        yield
    finally:
        _mode.reset(token)
