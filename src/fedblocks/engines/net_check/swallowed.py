"""Whether a module goes on in another way where an operation fails by its numbers. In a stack the
operation fails for all clients together, and who is healthy would go the other way, too.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fedblocks.core.net import Net
from fedblocks.core.parts import Params
from fedblocks.engines.failing_operations import checks_matrices, error_of
from fedblocks.engines.net_check.passes import run_pass

CALLS = 8  # of one operation in a pass that are let fail, one at a time
LOOKS = 3  # the same of those that look something up by a number


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations that may fail by their numbers, and lets one call of one fail."""

    def __init__(self, failing: Any = None, call: int = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.failing, self.call = failing, call
        self.seen: Counter[Any] = Counter()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: torch would import its compiler for that, which takes seconds in every process."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        error = error_of(func)
        if error is not None:
            self.seen[func] += 1
            if func is self.failing and self.seen[func] == self.call:
                raise error("as by its numbers")
        return func(*args, **(kwargs or {}))


def swallows_errors(net: Net, params: Params, x: Tensor) -> str:
    """Which failing operation a module passes over; empty: none."""
    tried: set[Any] = set()
    for training in (True, False):
        with _Watch() as watch:
            run_pass(net, params, x, training)
        for operation in watch.seen.keys() - tried:
            most = CALLS if checks_matrices(operation) else LOOKS
            fails = (_Watch(operation, n + 1) for n in range(min(watch.seen[operation], most)))
            if any(_ends(net, params, x, training, fail) for fail in fails):
                name = operation.overloadpacket.__name__
                return f"it goes on where {name} fails, which fails for a whole stack at once"
        tried |= watch.seen.keys()
    return ""


def _ends(net: Net, params: Params, x: Tensor, training: bool, watch: _Watch) -> bool:
    try:
        with watch:
            run_pass(net, params, x, training)
    except Exception:
        return False
    return True
