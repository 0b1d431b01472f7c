"""Several runs as one stack: seeds and learning rates are one more dimension."""

from fedblocks.engines.lanes.lanes import Lanes
from fedblocks.engines.lanes.likeness import why_not

__all__ = ["Lanes", "why_not"]
