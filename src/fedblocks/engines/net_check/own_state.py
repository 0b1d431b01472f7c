"""Whether a pass through a net depends on those before it, by what they leave in the module.

All clients run one module. What a pass leaves there is harmless only where the next one overwrites
it, or would have made the same: a tensor kept to be looked at, a mask kept by its length.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch
from torch import Tensor, nn

from fedblocks.core import mode
from fedblocks.core.net import Net
from fedblocks.core.parts import Params
from fedblocks.engines.net_check.held_values import Held, held_values


def left_behind(net: Net, params: Params, x: Tensor) -> str:
    """What a pass changes in the module or in torch's randomness; empty: nothing that matters."""
    randomness = torch.get_rng_state()
    name = _changed_for_others(net, params, x)
    if name:
        return (
            f'it changes its own attribute "{name}" in its forward pass, which no client owns: '
            "compute it from the inputs, or make it once, as a buffer (register_buffer); what only "
            "tells of the pass (a time, a count) is measured outside the module"
        )
    is_the_same = torch.equal(randomness, torch.get_rng_state())
    return "" if is_the_same else "it draws from torch's common randomness"


def _changed_for_others(net: Net, params: Params, x: Tensor) -> str:
    """The attribute that makes a pass depend on earlier ones; empty: none."""
    with _untouched(net, x) as module:
        start = held_values(module)
        alone = [(_answer(net, params, x, kind), held_values(module)) for kind in (True, False)]
    if all(held == start for _, held in alone):
        return ""
    others, numbers = _others(x), {name: value / 2 for name, value in params.items()}
    with _untouched(net, x) as module:
        for is_training, (answer, held) in zip((True, False), alone, strict=True):
            with suppress(Exception):  # numbers that the module may not take
                _answer(net, numbers, others, is_training)
            second, after_second = _answer(net, params, x, is_training), held_values(module)
            _answer(net, params, x, is_training)
            name = _first_unlike(held, after_second) or _first_change(
                after_second, held_values(module)
            )
            if not name and not torch.allclose(answer, second, equal_nan=True):
                name = _first_change(start, held)
            if name:
                return name
    return ""


@contextmanager
def _untouched(net: Net, x: Tensor) -> Iterator[nn.Module]:
    """While it is open, the net runs a copy of its module in which no pass has left anything."""
    used = net._templates.pop(x.device, None)
    try:
        yield net._on(x.device).module
    finally:
        del net._templates[x.device]
        if used is not None:
            net._templates[x.device] = used


def _answer(net: Net, params: Params, x: Tensor, training: bool) -> Tensor:
    """The outputs; in training with gradients, which hooks may see."""
    trained = {name for name, _ in net.template.named_parameters()}
    own = {
        name: value.clone().requires_grad_(training and name in trained)
        for name, value in params.items()
    }
    with torch.set_grad_enabled(training), mode.mode(training, mapped=False, key=torch.tensor(0)):
        outputs = net(own, x.clone())
        if outputs.requires_grad:
            leaves = [value for value in own.values() if value.requires_grad]
            torch.autograd.grad(outputs.sum(), leaves, allow_unused=True)
    return outputs.detach()


def _others(x: Tensor) -> Tensor:
    """A batch of the same shape whose rows are other ones, also on average."""
    return x[torch.arange(1, len(x) + 1, device=x.device).clamp(max=len(x) - 1)]


def _first_unlike(alone: Held, later: Held) -> str:
    """What another pass before has made another. Of what is there only then, nothing depends on it:
    a memory of results has more of them.
    """
    return next((name for name, value in alone.items() if later.get(name) != value), "")


def _first_change(before: Held, after: Held) -> str:
    names = dict.fromkeys((*after, *before))
    return next((name for name in names if before.get(name) != after.get(name)), "")
