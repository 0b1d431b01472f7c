"""What a few forward passes show of a net, whatever its size: what it writes into its
inputs, and what its code keeps elsewhere.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import checkpoint

from fedblocks.core import mode
from fedblocks.core.net import Net
from fedblocks.core.parts import Params, is_statistic
from fedblocks.engines.net_check.kept_state import changed_state, state_around


def writes_to_inputs(net: Net, params: Params, x: Tensor) -> str:
    """A method may need a batch twice, and it would be another the second time."""
    copy = x.clone()
    run_passes(net, params, copy)
    is_kept = torch.equal(copy, x) or bool(x.isnan().any())
    return "" if is_kept else "it writes into them: begin with x = x.clone()"


def overwritten(net: Net, params: Params, x: Tensor) -> set[str]:
    """Tensors of its own that a pass writes to. A client trains copies; others would be lent."""
    own = {name: value.clone() for name, value in params.items()}
    for training in (True, False):
        with torch.no_grad(), mode.mode(training, mapped=False, key=torch.tensor(0)):
            net(own, x.clone())
    changed = (n for n, v in own.items() if not torch.equal(v.nan_to_num(), params[n].nan_to_num()))
    return {name for name in changed if not is_statistic(name)}


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


def uses_others(net: Net, params: Params, x: Tensor) -> str:
    """A parameter that the outputs depend on, and that no client has another in the place of: one
    that is kept in a list, too, or that of another module.
    """
    trained = {name for name, _ in net.template.named_parameters()}
    own = {name: value.clone() for name, value in params.items()}
    known = {id(own[name].requires_grad_()) for name in trained & own.keys()}
    with torch.enable_grad(), mode.mode(True, mapped=False, key=torch.tensor(0)):
        used = parameters_behind(net(own, x.clone()))
    others = [one for one in used if id(one) not in known and isinstance(one, nn.Parameter)]
    names = {id(one): name for name, one in net._on(x.device).module.named_parameters()}
    for one in others:
        if name := names.get(id(one)):
            return f'it reads "{name}" not from its layer: write self.{name} in the forward pass'
        return f"its forward pass uses a parameter of the shape {list(one.shape)} of another module"
    return ""


def parameters_behind(outputs: Tensor) -> list[Tensor]:
    """The tensors that a backward pass would give a gradient."""
    waiting, seen, leaves = [outputs.grad_fn], set(), []
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            leaves += [node.variable] if hasattr(node, "variable") else []
            waiting += [behind for behind, _ in node.next_functions]
    return leaves


def run_passes(net: Net, params: Params, x: Tensor) -> None:
    """One in training, and one in evaluation."""
    for training in (True, False):
        run_pass(net, params, x, training)


def run_pass(net: Net, params: Params, x: Tensor, training: bool) -> None:
    """A pass that moves the statistics of copies."""
    own = {name: value.clone() for name, value in params.items()}
    with torch.no_grad(), mode.mode(training, mapped=False, key=torch.tensor(0)):
        net(own, x)
