"""Nets made of interchangeable modules: one path through a pool that has several copies
of each layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from fedblocks.core.cuts import is_under
from fedblocks.core.errors import UserError
from fedblocks.core.net import Net
from fedblocks.core.outside_modules import Output, take_logits
from fedblocks.core.parts import Params

Make = Callable[[], nn.Module]


class ModularNet(Net):
    """One path through a pool of modules: an encoder, any middle blocks, an output block.

    `net.stages` are its layers. `summary(width)` makes what a router looks at inputs with: [batch,
    width].
    """

    def __init__(
        self,
        layers: Sequence[Make] | Callable[[], list[nn.Module]],  # one by one, or all at once
        summary: Callable[[int], nn.Module],
        dtype: torch.dtype = torch.float32,
        input_shape: Sequence[int] | None = None,
    ) -> None:
        make_all = layers if callable(layers) else partial(_one_by_one, tuple(layers))
        super().__init__(lambda: nn.Sequential(*make_all()), None, None, dtype, input_shape)
        self.summary = summary
        self.classes = dense_head(self).out_features
        empty = [str(number) for number, stage in enumerate(self.stages, 1) if not stage.names]
        if len(self.stages) < 2 or empty:
            reason = (
                f"layer {', '.join(empty)} has no parameters"
                if empty
                else f"{len(self.stages)} layer is too few"
            )
            raise UserError(
                f"a modular net needs an encoder and an output block: {reason}",
                "give each layer a module",
            )


def modular(
    net: Net, widths: Sequence[int] = (512, 256), dropout: float = 0.5, spread: float | None = None
) -> ModularNet:
    """A path whose encoder is any net with a wider last layer: encoder, a dense block for each
    further width, output.

    `spread` is the standard deviation of the blocks' first weights; None leaves them to torch.
    """
    classes = dense_head(net).out_features
    encoder = partial(_encoder, net, widths[0])
    middle = [
        partial(_middle, before, after, dropout, spread) for before, after in pairwise(widths)
    ]
    output = partial(_dense, widths[-1], classes, spread)
    return ModularNet(
        [encoder, *middle, output], partial(with_outputs, net), net.dtype, net.input_shape
    )


def cut_before_head(net: Net, blocks: int, dropout: float, spread: float | None) -> ModularNet:
    """The net itself as a path: all before its last layer, dense blocks that add to what they are
    given, its last layer.
    """
    width = dense_head(net).in_features
    if all(is_under(name, [net.head_module]) for name in net.names):
        message = "the net has nothing before its last layer that could be an encoder"
        raise UserError(message, "give the widths of an encoder and of each middle block")
    layers = partial(_cut, net, [partial(_Adding, width, dropout, spread)] * blocks)
    return ModularNet(layers, partial(with_outputs, net), net.dtype, net.input_shape)


def dense_head(net: Net) -> nn.Linear:
    """The net's last layer, which must be a dense one for another to take its place."""
    if net.base and net.named_head is None:
        message = "the net with adapters has no head, which another layer could take the place of"
        raise UserError(message, "name its last dense layer: fb.lora(..., head=...)")
    head = net.template.get_submodule(net.head_module)
    if not isinstance(head, nn.Linear):
        kind = type(head).__name__
        raise UserError(
            f'the last layer of the net, "{net.head_module}", is a {kind} and not a dense layer',
            "name the dense layer, `Net.of(module, head=...)`",
        )
    return head


def with_outputs(net: Net, outputs: int) -> nn.Module:
    """The net's module with a new last layer of this many outputs, which are all that it
    returns.
    """
    module = net.make()
    layer = nn.Linear(dense_head(net).in_features, outputs)
    return _put_last(net, module, layer)


def _put_last(net: Net, module: nn.Module, layer: nn.Module) -> nn.Module:
    module.set_submodule(net.head_module, layer)
    if net.output is not None:
        module.register_forward_hook(partial(_take_outputs, net.output))
    return module


def _take_outputs(output: Output, module: nn.Module, inputs: Any, result: Any) -> Tensor:
    return take_logits(result, output)


def started_from(net: Net, params: Params) -> Net:
    """The same net, starting from trained tensors whatever the seed: pre-training in a
    run of its own.
    """
    if params.keys() != set(net.names):
        odd = sorted(params.keys() ^ set(net.names))
        raise UserError(
            f"the weights are not those of this net: {', '.join(odd[:3])}",
            "give all tensors of one slot",
        )

    def make() -> nn.Module:
        module = net.make().to(net.dtype)
        module.load_state_dict(params, strict=False)
        return module

    return Net(make, net.head_module, None, net.dtype, net.input_shape, net.output)


def _encoder(net: Net, width: int) -> nn.Module:
    return nn.Sequential(with_outputs(net, width), nn.ReLU())


def _one_by_one(makers: Sequence[Make]) -> list[nn.Module]:
    return [make() for make in makers]


def _cut(net: Net, middle: Sequence[Make]) -> list[nn.Module]:
    """Both ends of one module, so that they start as the net does."""
    module = net.make()
    head = module.get_submodule(net.head_module)
    return [_put_last(net, module, nn.Identity()), *_one_by_one(middle), head]


class _Adding(nn.Module):
    """A middle block that adds to what it is given, so that a net with it learns as fast."""

    def __init__(self, width: int, dropout: float, spread: float | None) -> None:
        super().__init__()
        self.change = _middle(width, width, dropout, spread)

    def forward(self, x: Tensor) -> Tensor:
        changed: Tensor = x + self.change(x)
        return changed


def _middle(inputs: int, outputs: int, dropout: float, spread: float | None) -> nn.Module:
    return nn.Sequential(_dense(inputs, outputs, spread), nn.ReLU(), nn.Dropout(dropout))


def _dense(inputs: int, outputs: int, spread: float | None) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    if spread is not None:
        nn.init.normal_(layer.weight, std=spread)
        nn.init.zeros_(layer.bias)
    return layer
