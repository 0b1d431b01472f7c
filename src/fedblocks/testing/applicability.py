"""Where an invariant has nothing to say of a method: each function gives the reason, or nothing."""

from __future__ import annotations

from fedblocks.core.blocks import Federated
from fedblocks.engines.lanes.likeness import why_not
from fedblocks.testing.example import Example
from fedblocks.testing.lanes import lane_cases


def always(example: Example) -> str:
    """It holds or fails for every method."""
    return ""


def of_private_state(example: Example) -> str:
    """Whether clients keep anything."""
    keeps = any(method.stateful for method in example.methods().values())
    return "" if keeps else "clients keep nothing between rounds"


def of_shared_blocks(example: Example) -> str:
    """Whether clients write anything."""
    blocks = [block for method in example.methods().values() for block in method.blocks().values()]
    return "" if any(isinstance(block, Federated) for block in blocks) else "nothing is shared"


def of_lanes(example: Example) -> str:
    """Whether runs of the method can be one stack."""
    reason = why_not([lane.experiment for lane in lane_cases(example)])
    return "" if reason is None else f"its runs cannot be done together: {reason}"


def of_single_labels(example: Example) -> str:
    """Whether an example has one class, which other targets can take the place of."""
    data = example.federation
    is_single = data.y.dim() == 1 and data.task.of_classes
    return "" if is_single else "the example's targets are not one class for each input"
