"""What a few forward passes show of a net, whatever its size: what it writes into its
inputs, and what its code keeps elsewhere.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import checkpoint

from fedblocks.core import mode
from fedblocks.core.net import Net
from fedblocks.core.parts import Params
from fedblocks.engines.net_check.kept_state import changed_state, state_around


def writes_to_inputs(net: Net, params: Params, x: Tensor) -> str:
    """A method may need a batch twice, and it would be another the second time."""
    copy = x.clone()
    run_passes(net, params, copy)
    is_kept = torch.equal(copy, x) or bool(x.isnan().any())
    return "" if is_kept else "it writes into them: begin with x = x.clone()"


def keeps_outside(net: Net, params: Params, x: Tensor) -> str:
    """What a pass changes in names, classes and functions that the module's code uses; empty:
    nothing that is found there.
    """
    before = state_around(net.template)
    run_passes(net, params, x.clone())
    return changed_state(before, state_around(net.template))


def computes_anew(net: Net, params: Params, x: Tensor) -> str:
    """Whether a part of a pass is left to the backward pass, when the tensors that a client has in
    the module's place are gone.
    """
    called: list[int] = []
    original = checkpoint._checkpoint_without_reentrant_generator

    def noting(*args: Any, **options: Any) -> Any:
        called.append(1)
        return original(*args, **options)

    checkpoint._checkpoint_without_reentrant_generator = noting
    try:
        run_passes(net, params, x.clone())
    finally:
        checkpoint._checkpoint_without_reentrant_generator = original
    return "it uses torch.utils.checkpoint: call the layers without it" if called else ""


def run_passes(net: Net, params: Params, x: Tensor) -> None:
    """One in training, and one in evaluation."""
    for training in (True, False):
        run_pass(net, params, x, training)


def run_pass(net: Net, params: Params, x: Tensor, training: bool) -> None:
    """A pass that moves the statistics of copies."""
    own = {name: value.clone() for name, value in params.items()}
    with torch.no_grad(), mode.mode(training, mapped=False, key=torch.tensor(0)):
        net(own, x)
