"""What a forward pass may do: control flow, writing in place, autograd, hooks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from net_zoo.species import NONE, ONE, Species, classify, dense, hidden

TAKES_ITEM = "vmap: It looks like you're calling .item() on a Tensor"
CHOOSES = (
    "vmap: It looks like you're attempting to use a Tensor in some data-dependent control flow"
)
TAKES_SHAPE = "vmap: We do not support batching operators that can support dynamic shape"
HAS_SHAPE = "vmap: We do not support batching operators that can output dynamic shape"
NO_STORAGE = "Cannot access data pointer of Tensor that doesn't have storage"
OTHER_NUMBERS = "three clients train as in plain PyTorch: "


class OldReLU(torch.autograd.Function):
    """A function of the older form: its forward takes the context."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * (ctx.saved_tensors[0] > 0)


class NewReLU(torch.autograd.Function):
    """A function of the newer form, which torch can map by itself."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clamp(min=0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * (ctx.saved_tensors[0] > 0)


def route_by_number(module: Any, x: Tensor) -> Tensor:
    h = hidden(module, x)
    return module.fc(h if h.mean().item() > 0 else -h)


def route_by_tensor(module: Any, x: Tensor) -> Tensor:
    h = hidden(module, x)
    return module.fc(h if h.mean() > 0 else -h)


def pick(module: Any, x: Tensor) -> Tensor:
    h = hidden(module, x)
    return module.fc(h) + h[h > 0].sum()


def count_positive(module: Any, x: Tensor) -> Tensor:
    h = hidden(module, x)
    return module.fc(h) * (1 + len((h > 0).nonzero()) / 100)


def count_kinds(module: Any, x: Tensor) -> Tensor:
    h = hidden(module, x)
    return module.fc(h) * len(torch.unique(h > 0))


def use_numpy(module: Any, x: Tensor) -> Tensor:
    h = hidden(module, x)
    return module.fc(h) * (1 + float(h.detach().numpy().mean()))


def use_list(module: Any, x: Tensor) -> Tensor:
    h = hidden(module, x)
    return module.fc(h) * (1 + sum(h.detach().mean(0).tolist()))


def fill_zeros(module: Any, x: Tensor) -> Tensor:
    h = torch.zeros(len(x), 6, dtype=x.dtype)
    h[:, :3] = hidden(module, x)[:, :3]
    return module.fc(h)


def fill_new_zeros(module: Any, x: Tensor) -> Tensor:
    h = x.new_zeros(len(x), 6)
    h[:, :3] = hidden(module, x)[:, :3]
    return module.fc(h)


def clamp_weights(module: Any, x: Tensor) -> Tensor:
    module.inner.weight.data.clamp_(-0.1, 0.1)
    return classify(module, x)


def use_gradient(module: Any, x: Tensor) -> Tensor:
    with torch.enable_grad():
        inputs = x.clone().requires_grad_()
        energy = module.inner(inputs).square().sum()
        (slope,) = torch.autograd.grad(energy, inputs, create_graph=True)
    return classify(module, x) + slope.sum(1, keepdim=True)


def centre(module: Any, x: Tensor) -> Tensor:
    h = hidden(module, x)
    return module.fc(h - h.mean(0))


def in_single_precision(module: Any, x: Tensor) -> Tensor:
    return module.fc(hidden(module, x) + torch.ones(6).float())


def in_half_precision(module: Any, x: Tensor) -> Tensor:
    return module.fc(hidden(module, x).bfloat16().to(x.dtype))


def with_forward_hook(module: Any) -> None:
    module.inner.register_forward_hook(lambda layer, inputs, output: 2 * output)


def with_pre_hook(module: Any) -> None:
    module.inner.register_forward_pre_hook(lambda layer, inputs: (2 * inputs[0],))


def with_backward_hook(module: Any) -> None:
    module.fc.register_full_backward_hook(lambda layer, inputs, outputs: (2 * inputs[0],))


def with_parameter_hook(module: Any) -> None:
    module.inner.weight.register_hook(lambda gradient: gradient / 10)


FORWARD_PASSES = (
    Species("a branch by `.item()`", dense(route_by_number), ONE, TAKES_ITEM),
    Species("a branch by a tensor", dense(route_by_tensor), ONE, CHOOSES),
    Species("`x[mask]`", dense(pick), ONE, TAKES_SHAPE),
    Species("`nonzero`", dense(count_positive), ONE, HAS_SHAPE),
    Species("`unique`", dense(count_kinds), ONE, HAS_SHAPE),
    Species("`.numpy()`", dense(use_numpy), ONE, NO_STORAGE),
    Species("`.tolist()`", dense(use_list), ONE, NO_STORAGE),
    Species(
        "writes into `torch.zeros(...)`",
        dense(fill_zeros),
        ONE,
        "vmap: inplace arithmetic(self, *extra_args) is not possible",
    ),
    Species("writes into `x.new_zeros(...)`", dense(fill_new_zeros)),
    Species("`clamp_` in place", dense(lambda m, x: m.fc(m.inner(x).clamp_(-0.5, 0.5)))),
    Species(
        "weights clamped in the forward pass",
        dense(clamp_weights),
        ONE,
        "accessing `data` under vmap transform is not allowed",
    ),
    Species("a mean over the batch", dense(centre), ONE, OTHER_NUMBERS),
    Species(
        "`x - x[:1]`, relative to the first example of the batch",
        dense(lambda m, x: m.fc(hidden(m, x - x[:1]))),
        ONE,
        "it is evaluated alone as beside others: ",
    ),
    Species(
        "`x.squeeze()`, which loses a batch of one",
        dense(lambda m, x: m.fc(hidden(m, x).squeeze())),
        ONE,
        "an example can be evaluated alone: ",
    ),
    Species(
        "an `autograd.Function` of the older form",
        dense(lambda m, x: m.fc(OldReLU.apply(m.inner(x)))),
        ONE,
        "In order to use an autograd.Function with functorch transforms",
    ),
    Species(
        "an `autograd.Function` with `setup_context` and `generate_vmap_rule`",
        dense(lambda m, x: m.fc(NewReLU.apply(m.inner(x)))),
    ),
    Species(
        "`torch.autograd.grad`",
        dense(use_gradient),
        ONE,
        "You are attempting to call Tensor.requires_grad_()",
    ),
    Species(
        "`checkpoint(..., use_reentrant=False)`",
        dense(lambda m, x: m.fc(checkpoint(lambda z: hidden(m, z), x, use_reentrant=False))),
        NONE,
        "it uses torch.utils.checkpoint: call the layers without it",
    ),
    Species("a forward hook", dense(classify, with_forward_hook)),
    Species("a forward pre-hook", dense(classify, with_pre_hook)),
    Species("a backward hook", dense(classify, with_backward_hook), ONE, OTHER_NUMBERS),
    Species(
        "a hook of a parameter",
        dense(classify, with_parameter_hook),
        NONE,
        'the parameter "inner.weight" has a hook (register_hook)',
    ),
    Species("single precision by hand", dense(in_single_precision)),
    Species("half precision by hand", dense(in_half_precision)),
)
