"""What is done where memory did not suffice: fewer clients at once."""

from __future__ import annotations

import torch

from fedblocks.core.errors import UserError
from fedblocks.engines.round import Engine
from fedblocks.engines.vectorised import Vectorised
from fedblocks.kernels.device_errors import held_by_others


def with_less_memory(engine: Engine, clients: int, error: Exception) -> Vectorised:
    """The engine for half as many clients of so many at once."""
    half = min(engine.chunk, clients) // 2 if isinstance(engine, Vectorised) else 0
    if half < 1:
        fix = (
            "use a smaller net, fewer branches or components, a smaller batch, or a device "
            "with more memory"
        )
        message = "one client alone does not fit the memory of the device"
        if others := held_by_others():
            message = f"{message}, of which other programs hold {others / 2**30:.1f} GiB"
            fix = f"end these, or run one after the other; else {fix}"
        raise UserError(message, fix) from error
    torch.cuda.empty_cache()
    return Vectorised(chunk=half)
