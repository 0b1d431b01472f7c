"""Whether a module goes on in another way where an operation fails by its numbers. In a stack the
operation fails for all clients together, and who is healthy would go the other way, too.
"""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fedblocks.core.net import Net
from fedblocks.core.parts import Params
from fedblocks.engines.failing_operations import errors_of
from fedblocks.engines.net_check.passes import run_pass

CALLS = 8  # of one operation in a pass that are let fail, one at a time


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations that may fail by their numbers, and lets one call of one fail."""

    def __init__(self, failing: Any = None, call: int = 0, error: Any = RuntimeError) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.failing, self.call, self.error = failing, call, error
        self.seen: Counter[Any] = Counter()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: torch would import its compiler for that, which takes seconds in every process."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if errors_of(func):
            self.seen[func] += 1
            if func is self.failing and self.seen[func] == self.call:
                raise self.error("as by its numbers")
        return func(*args, **(kwargs or {}))


def swallows_errors(net: Net, params: Params, x: Tensor) -> str:
    """Which failing operation a module passes over; empty: none."""
    for training in (True, False):
        with _Watch() as watch:
            run_pass(net, params, x, training)
        for operation, calls in watch.seen.items():
            turns = product(range(1, min(calls, CALLS) + 1), errors_of(operation))
            fails = (_Watch(operation, call, error) for call, error in turns)
            if any(_ends(net, params, x, training, fail) for fail in fails):
                name = operation.overloadpacket.__name__
                return f"it goes on where {name} fails, which fails for a whole stack at once"
    return ""


def _ends(net: Net, params: Params, x: Tensor, training: bool, watch: _Watch) -> bool:
    try:
        with watch:
            run_pass(net, params, x, training)
    except Exception:
        return False
    return True
