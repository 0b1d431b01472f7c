"""Networks as pure functions of named tensors: any `nn.Module`, cut into pieces that
blocks can hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedblocks.core.common_draws import refuse_common_draws, traced_module
from fedblocks.core.cuts import (
    check_cut,
    check_not_empty,
    check_path,
    is_under,
    last_layer,
    linear_layers,
)
from fedblocks.core.fields import Fields, columns_of, fields_of, make_with_fields
from fedblocks.core.net_tensors import check_all_there, check_constants, check_tensor_names
from fedblocks.core.order_of_use import check_in_use, layers_in_use
from fedblocks.core.outside_modules import (
    Output,
    apply_once,
    check_can_be_reset,
    in_precision,
    is_double,
    reset,
    seeded,
    take_logits,
)
from fedblocks.core.parts import Params
from fedblocks.core.pieces import LayerChain, Piece
from fedblocks.core.template import Template
from fedblocks.core.top_layers import order_of_layers
from fedblocks.layers.copying import copy_module
from fedblocks.layers.foreign_masks import keep_masks_whole
from fedblocks.layers.guard import Guard, needs_guard
from fedblocks.layers.replacement import BatchNorm, can_be_mapped, mappable, statistics_of, switch


class Net:
    """A network template. Its tensors live in blocks, never in the module."""

    def __init__(
        self,
        make: Callable[[], nn.Module],
        head: str | None,
        blocks: dict[str, list[str]] | None,
        dtype: torch.dtype,
        input_shape: Sequence[int] | None = None,
        output: Output | None = None,
    ) -> None:
        self.make, self.dtype, self.output = make, dtype, output
        self.input_shape = None if input_shape is None else tuple(input_shape)  # of one example
        self.base_hash = self.adapters_are = ""  # of what nobody trains: tensors, and the rest
        self.overwritten: set[str] = set()  # tensors that a pass writes to, once one was looked at
        self._templates: dict[torch.device, Template] = {}
        with seeded(0):  # constants are a part of the net, the same for all seeds
            module, common = traced_module(make)
            module = mappable(module)
        self.loses_digits = is_double(module) and dtype != torch.float64
        self.template = in_precision(module, dtype)
        keep_masks_whole(self.template)
        self.fields = fields_of(self.template)  # of an example; None: one tensor
        self.names = [*dict(self.template.named_parameters()), *statistics_of(self.template)]
        refuse_common_draws(make, self.template, common, self.names)
        self.all_names = frozenset(self.names)
        self.named_head = head
        check_path(self.template, self.names, last_layer(self.template) if head is None else head)
        self.pieces = {name: self._cut_piece(name, paths) for name, paths in (blocks or {}).items()}

    @staticmethod
    def from_pretrained(source: str | Path, inputs: Fields | None = None, **options: Any) -> Net:
        """A Hugging Face model of a local folder or the hub; see `load_pretrained`."""
        from fedblocks.core.pretrained import load_pretrained  # which stands on this module

        return load_pretrained(source, inputs, **options)

    @staticmethod
    def of(
        module: nn.Module | Callable[[], nn.Module],
        head: str | None = None,
        *,
        blocks: dict[str, list[str]] | None = None,
        keep_weights: bool = False,
        dtype: torch.dtype = torch.float32,
        input_shape: Sequence[int] | None = None,
        output: Output | None = None,
        inputs: Fields | None = None,
    ) -> Net:
        """Any module, or a function that makes one. `head` names the last layers (default: the
        layer that the forward pass uses last), `blocks` any other cut.

        A seed re-initialises the module (`reset_parameters`); `keep_weights` starts from its own
        weights. `input_shape`, of one example, is needed only by methods that build a layer on the
        inputs (Flow's router). `output` says where the logits are in what the module returns, if
        no tensor: a place in a tuple (0), a key or an attribute ("logits"), or a function.
        `inputs` are the fields of an example that has several (`data.fields`); the module takes
        them by name, by place, or together as a dictionary or a tuple.
        """
        make = module
        if isinstance(module, nn.Module):
            make = partial(copy_module if keep_weights else reset, module)
            if not keep_weights:
                check_can_be_reset(module)
        if inputs is not None:
            make, input_shape = partial(make_with_fields, make, inputs), (columns_of(inputs),)
        return Net(make, head, blocks, dtype, input_shape, output)

    def init(self, seed: int) -> Params:
        """All tensors at the start, a function of the seed alone."""
        with seeded(seed):
            module = self.make()  # its tensors have the names of the template's
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        return {name: tensors[name].detach().clone().to(self.dtype) for name in self.names}

    def __call__(self, params: Params, x: Tensor) -> Tensor:
        check_all_there(self, params)
        template = self._on(x.device)
        return self._logits(template(params, template.module, x))

    def features(self, params: Params, x: Tensor) -> Tensor:
        """What the head, which may be absent, is given: the representation of the input."""
        check_all_there(self, params, head=False)
        return self._on(x.device).call_watching(self.head_module, params, x)[1].to(self.dtype)

    def with_features(self, params: Params, x: Tensor) -> tuple[Tensor, Tensor]:
        """The logits and what the head was given, from one pass."""
        check_all_there(self, params)
        result, features = self._on(x.device).call_watching(self.head_module, params, x)
        logits = self._logits(result)
        return logits, features.to(logits.dtype)

    def _logits(self, result: Any) -> Tensor:
        """The logits in what the module returned."""
        return take_logits(result, self.output)

    def piece(self, names: Iterable[str]) -> Piece:
        """Some of the tensors by their names, in the net's own order; `pieces` has named cuts."""
        wanted = check_tensor_names(self, names)
        return Piece(self, [n for n in self.names if n in wanted])

    @cached_property
    def whole(self) -> Piece:
        return Piece(self, self.names)

    @cached_property
    def layers_in_use(self) -> list[str] | None:
        """The layers that the logits depend on, in order; None where the code does not show it."""
        return layers_in_use(self.template, self.output)

    @cached_property
    def head_module(self) -> str:
        """The path of the head: as named, or of the layer that is used last."""
        if self.named_head is not None:
            return self.named_head
        return (self.layers_in_use or [last_layer(self.template)])[-1]

    @cached_property
    def order(self) -> list[str]:
        """The layers with parameters, the one that is used last at the end."""
        return order_of_layers(self)

    @property
    def is_cut(self) -> bool:
        """Whether anything has asked for the body, the head, or layers counted from the output."""
        return any(asked in vars(self) for asked in ("head", "body", "order"))

    @cached_property
    def head(self) -> Piece:
        names = self._under([self.head_module])
        piece = self._side("head", names, self.chain.stretch(names, after=True))
        check_in_use(self.head_module, self.layers_in_use)
        return piece

    @cached_property
    def body(self) -> Piece:
        names = set(self.names) - self._under([self.head_module])
        return self._side("body", names, self.chain.stretch(names, after=False))

    def _side(self, what: str, names: set[str], stages: range | None) -> Piece:
        check_cut(self.template, "head", [self.head_module])
        check_not_empty(what, self.head_module, names)
        return Piece(self, [n for n in self.names if n in names], stages)

    def _cut_piece(self, name: str, paths: list[str]) -> Piece:
        names = self._under(paths)
        check_cut(self.template, f'block "{name}"', paths)
        return self.piece(names)

    @cached_property
    def layers(self) -> dict[str, Piece]:
        """The linear layers that train (dense, convolution, ..., recurrent), each with its bias."""
        pieces = {path: self.piece(self._under([path])) for path in linear_layers(self.template)}
        # one whose tensors are all those of a layer before it is that layer once more
        return {path: piece for path, piece in pieces.items() if piece.names}

    @cached_property
    def rest(self) -> Piece:
        """What belongs to no linear layer: scales, norms, statistics."""
        linear = {name for piece in self.layers.values() for name in piece.names}
        return self.piece(set(self.names) - linear)

    @cached_property
    def norms(self) -> Piece:
        """The normalisation layers, parameters and statistics."""
        kinds = (BatchNorm, nn.GroupNorm, nn.LayerNorm, nn.InstanceNorm1d, nn.InstanceNorm2d)
        modules = self.template.named_modules()
        return self.piece(self._under([path for path, one in modules if isinstance(one, kinds)]))

    @cached_property
    def stages(self) -> tuple[Piece, ...]:
        """The net as a chain of callable pieces, each with the tensors of its own;
        empty if it is no chain.
        """
        places = range(len(self.chain.layers))
        return tuple(Piece(self, self.chain.names_under(i), range(i, i + 1)) for i in places)

    @cached_property
    def chain(self) -> LayerChain:
        # one whose logits have to be looked for, or inputs taken apart, is more than its layers
        if self.output is None and self.fields is None:
            return LayerChain.of(self.template, self.names)
        return LayerChain((), ())

    def run_stage(self, index: int, params: Params, x: Tensor) -> Tensor:
        layer = self.chain.layers[index]
        own = {n: v for n, v in params.items() if n.startswith(f"{layer}.")}
        template = self._on(x.device)
        return template(own, template.module.get_submodule(layer), x)

    @cached_property
    def unmappable(self) -> list[str]:
        """Layers that cannot be mapped over clients: such nets run on the sequential
        engine only.
        """
        return [path for path, module in self.template.named_modules() if not can_be_mapped(module)]

    @cached_property
    def constant_names(self) -> list[str]:
        """Buffers that training does not move; each is the same for all clients, rounds
        and seeds.
        """
        return [name for name, _ in self.template.named_buffers() if name not in self.names]

    @property
    def constants(self) -> Params:
        """What is in them."""
        return {name: self.template.get_buffer(name) for name in self.constant_names}

    def set_constants(self, values: Params) -> None:
        """Put those of a stored run in their place."""
        check_constants(self.constants, values)
        for name, value in self.constants.items():
            value.copy_(values[name])
        for device in list(self._templates):
            del self._templates[device]
            self.place(device)

    def size(self) -> int:
        """How many parameters the net has (statistics left out)."""
        return sum(p.numel() for p in self.template.parameters())

    def place(self, device: torch.device) -> None:
        """Make the template for a device: inside a derivative of torch.func it could not be."""
        self._on(device)

    def _on(self, device: torch.device) -> Template:
        """The template with its constants on a device."""
        if device not in self._templates:
            module = apply_once(self._copy_template(), lambda value: value.to(device))
            is_guarded = needs_guard(module, self.constant_names)
            guard = Guard(module, self.constant_names) if is_guarded else None
            self._templates[device] = Template(module, switch, guard, self.dtype, self.overwritten)
        return self._templates[device]

    def _copy_template(self) -> nn.Module:
        return copy_module(self.template)

    @cached_property
    def base(self) -> Params:
        """Tensors that nobody trains and nobody sends; a net with adapters has such."""
        return {}

    def base_on(self, device: torch.device) -> Params:
        """The base as it is used on a device."""
        return {}

    def _under(self, paths: Iterable[str]) -> set[str]:
        below: set[str] = set()
        for path in paths:
            check_path(self.template, self.names, path)
            below |= {n for n in self.names if is_under(n, [path])}
        return below
