"""The `auto` engine: which way to map clients suits a net, a device and a cohort, and why."""

from __future__ import annotations

import torch
from torch import nn

from fedblocks.core.net import Net
from fedblocks.engines.round import Engine
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised

# Measured on two CPU cores (clients of 80 examples, batches of 16): below these sizes a stack of
# clients was faster than a loop. A single step of a small net is mostly overhead, which a stack
# pays once.
MOST_DENSE = 250_000  # parameters of a net without convolutions
MOST_CONVOLUTIONAL = 50_000  # parameters of a net with convolutions
FEWEST_CLIENTS = 4

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def choose(net: Net, device: torch.device, cohort: int, chunk: int = 64) -> tuple[Engine, str]:
    """The engine for a cohort of this many clients, and the reason in a few words."""
    modules = list(net.template.modules())
    if net.unmappable:
        return Sequential(), f'"{net.unmappable[0]}" of the net cannot be mapped over clients'
    if device.type != "cpu":
        return Vectorised(chunk=chunk), f"a GPU trains a whole cohort at once ({device.type})"
    if any(isinstance(m, nn.RNNBase) for m in modules):
        return Sequential(), "on a CPU the fused recurrent layer is faster, one client at a time"
    if cohort < FEWEST_CLIENTS:
        return Sequential(), f"on a CPU {cohort} clients are too few to gain from a stack"
    convolutional = any(isinstance(m, _CONVOLUTIONS) for m in modules)
    if net.size() > (MOST_CONVOLUTIONAL if convolutional else MOST_DENSE):
        kind = "convolutional" if convolutional else "dense"
        what = f"a {kind} net of {net.size():,} parameters"
        return Sequential(), f"on a CPU {what} is faster one client at a time"
    what = f"a small net ({net.size():,} parameters)"
    return Vectorised(chunk=chunk), f"{what}: a stack of {cohort} clients is faster"
