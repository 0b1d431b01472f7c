"""A personal model as the tensors of one net, where it is one."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedblocks.core import mode
from fedblocks.core.errors import UserError
from fedblocks.core.lora import LoraNet
from fedblocks.core.method import Method
from fedblocks.core.net import Net
from fedblocks.core.outside_modules import in_precision, seeded
from fedblocks.core.parts import Blocks, Params
from fedblocks.core.task import CLASSIFICATION, Task

ROUNDING = 1e-4  # of the outputs, by which merged weights may differ


def passes_of(method: Method, blocks: Blocks, x: Tensor, task: Task) -> tuple[Params | None, int]:
    """What the method's net is called with, if predicting is one pass of it over the inputs, e.g.
    pFedMB's mixture; and how many passes it is.
    """
    net = _watch(method.net)
    with torch.no_grad(), mode.mode(training=False, mapped=False, task=task):
        logits = replace(method, net=net).predict(blocks, x)
    once = len(net.passes) == 1 and net.passes[0][1] is x and net.passes[0][2] is logits
    return (net.passes[0][0] if once else None), len(net.passes)


def merge(method: Method, blocks: Blocks, x: Tensor, task: Task = CLASSIFICATION) -> Params:
    """The weights of the module that a personal model is; adapters are merged into the base."""
    params = tensors_of_one_net(method, blocks, x, task)
    net = method.net
    if isinstance(net, LoraNet):
        whole = net.merge(params)
        _check_merged(net, params, whole, x, task)
        return _state_of(net.plain, {**net.constants, **whole})
    return _state_of(net, {**net.constants, **params})


def tensors_of_one_net(method: Method, blocks: Blocks, x: Tensor, task: Task) -> Params:
    """What the method's net is called with, where a prediction is one pass of it."""
    params, count = passes_of(method, blocks, x, task)
    if params is None:
        name = type(method).__name__
        how = f"{count} passes of its net" if count > 1 else "more than one pass of its net"
        raise UserError(
            f"a client's model of {name} is no single net: a prediction is {how}",
            "use `predict`, or fb.export_model(...) for a file of the whole model",
        )
    return params


def _check_merged(net: LoraNet, params: Params, whole: Params, x: Tensor, task: Task) -> None:
    """Refuse merged weights that are not the model on some inputs."""
    plain = net.plain
    if net.constants:
        plain.set_constants(net.constants)
    with torch.no_grad(), mode.mode(training=False, mapped=False, task=task):
        ours, theirs = net(params, x).double(), plain(whole, x).double()
    largest = float((ours - theirs).abs().max())
    if not largest <= ROUNDING * (1 + float(ours.abs().max())):
        raise UserError(
            f"merged weights are not the model: outputs differ by {largest:.2g}; the module reads "
            "the weights of a target also without calling the layer",
            "leave that layer out of the targets, or use `predict`",
        )


def _state_of(net: Net, tensors: Params) -> Params:
    """The `state_dict` of a net's own module with these tensors: under all names of a tied one."""
    with seeded(0):
        module = in_precision(net.make(), net.dtype)
    own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    with torch.no_grad():
        for name, value in own.items():
            if name in tensors:  # not: how many batches a layer has seen
                value.copy_(tensors[name])
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


class _Watched(Net):
    """A net that remembers what it was given and what came out."""

    passes: list[tuple[Params, Tensor, Tensor]]

    def __call__(self, params: Params, x: Tensor) -> Tensor:
        logits = super().__call__(params, x)
        self.passes.append((params, x, logits))
        return logits


def _watch(net: Net) -> _Watched:
    """The same net, watched; its pieces are made anew, so that they belong to it."""
    kind = type(net)
    twin: Any = copy.copy(net)
    for name in list(vars(twin)):
        if isinstance(getattr(kind, name, None), cached_property):
            del vars(twin)[name]
    twin.__class__ = type("Watched", (_Watched, kind), {})
    twin.passes = []
    twin.pieces = {name: twin.piece(piece.names) for name, piece in net.pieces.items()}
    watched: _Watched = twin
    return watched
