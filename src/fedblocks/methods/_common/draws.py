"""What a seed draws of a net: copies of one that draws nothing start alike."""

from __future__ import annotations

import torch

from fedblocks.core.lora import LoraNet
from fedblocks.core.net import Net


def drawn(net: Net) -> frozenset[str]:
    """The tensors that start elsewhere with another seed; of one without numbers, all might."""
    one, other = net.init(0), net.init(1)
    return frozenset(
        name for name in one if one[name].is_meta or not torch.equal(one[name], other[name])
    )


def drawn_in_outputs(net: Net) -> frozenset[str]:
    """Those that outputs show: a drawn factor of an adapter is multiplied with zeros at first."""
    hidden = net.adapters.names if isinstance(net, LoraNet) else []
    return drawn(net) - {*hidden}


def never_apart(method: str, parts: str) -> str:
    """Parts that are equal at the start have equal gradients, and stay equal."""
    how = "give it layers that are drawn: pass a function that makes the module"
    return f"{parts} begin alike, as the net keeps its weights, which makes {method} FedAvg; {how}"
