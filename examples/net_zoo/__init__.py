"""Nets as people write them, and what becomes of each: on which engines it trains as in plain
PyTorch, or why it is refused. `docs/nets.md` is this table; a test runs all of it.
"""

from net_zoo.architectures import ARCHITECTURES
from net_zoo.forward_passes import FORWARD_PASSES
from net_zoo.layers import LAYERS
from net_zoo.memories import MEMORIES
from net_zoo.noise import NOISE
from net_zoo.species import Species
from net_zoo.tensors import TENSORS

ZOO: dict[str, tuple[Species, ...]] = {
    "Whole nets": ARCHITECTURES,
    "Layers": LAYERS,
    "Where tensors are kept": TENSORS,
    "What a forward pass remembers": MEMORIES,
    "What a forward pass does": FORWARD_PASSES,
    "Noise": NOISE,
}

__all__ = ["ZOO", "Species"]
