"""Low-rank adapters (LoRA) on a frozen base: a net whose trained tensors are two factors for each
of some layers, and a head (Hu et al., 2021).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial

import torch
from torch import nn

from fedblocks.core.errors import NetError
from fedblocks.core.frozen_hash import content_hash
from fedblocks.core.lora_origin import check_numbers, modules_in, share_tensors, with_own_modules
from fedblocks.core.lora_targets import (
    ALL,
    LoraSpec,
    check_spec,
    find_targets,
    names_of_targets,
    tied_layers,
)
from fedblocks.core.net import Net
from fedblocks.core.net_tensors import check_all_there
from fedblocks.core.parts import Params
from fedblocks.core.pieces import Piece
from fedblocks.layers.copying import copy_module
from fedblocks.layers.lora import Adapter, add_adapter, put_to_rest

_LEFT_OUT = "layers_left_out"  # an attribute of the module
_ONE_NET = "merge a client's model by fb.personal(...).merged()"


class LoraNet(Net):
    """A net whose tensors are adapters `....lora_A`, `....lora_B` and those of a head; all others
    are its base, which every device holds once.
    """

    def __init__(self, plain: Net, spec: LoraSpec) -> None:
        # what `plain` is made of, and not itself: it would hold the base a second time
        own = with_own_modules(plain.make)
        self._about = (own, plain.named_head, None, plain.dtype, plain.input_shape)
        self.plain_names = plain.names  # of all tensors of the net without adapters
        self.spec = spec
        check_spec(spec, plain.dtype)
        make = partial(_make, own, spec)
        super().__init__(make, spec.head, None, plain.dtype, plain.input_shape, output=plain.output)
        for module in modules_in(own):
            share_tensors(module, self.base)
        without_numbers = any(value.is_meta for value in self.base.values())
        self.base_hash = "" if without_numbers else content_hash(self.base)
        if not without_numbers:
            check_numbers(self.base)
        self.left_out: list[str] = self.template.__dict__[_LEFT_OUT]  # by "all": tied layers
        self.adapters_are = f"scale {spec.scale!r}"  # no output shows it while a factor is zero

    @property
    def plain(self) -> Net:
        """The net without adapters, which takes what `merge` returns."""
        return Net(*self._about, self.output)

    @cached_property
    def base(self) -> Params:
        """What no client trains: all tensors of the net without adapters, but for the head's."""
        tensors = dict(self.template.named_buffers(remove_duplicate=False))
        return {name: tensors[name] for name in self.plain_names if name not in self.names}

    def base_on(self, device: torch.device) -> Params:
        """The base as it is used on a device."""
        tensors = dict(self._on(device).module.named_buffers(remove_duplicate=False))
        return {name: tensors[name] for name in self.base}

    @cached_property
    def targets(self) -> tuple[str, ...]:
        """The paths of the layers with an adapter."""
        parts = self.template.named_modules()
        return tuple(path for path, part in parts if isinstance(part, Adapter))

    @cached_property
    def zero_factors(self) -> set[str]:
        """The factors that are zero at the start: A of an embedding, B of other layers."""
        return {_tensor(path, f"lora_{self._adapter(path).zero_factor}") for path in self.targets}

    def weight_name(self, path: str) -> str:
        """The name of the weights that an adapter adds to."""
        return _tensor(path, self._adapter(path).weight_name)

    def _adapter(self, path: str) -> Adapter:
        """The layer with an adapter at a path."""
        layer = self.template.get_submodule(path)
        if not isinstance(layer, Adapter):
            raise TypeError(f"{path} has no adapter")
        return layer

    @cached_property
    def shapes(self) -> dict[str, torch.Size]:
        """Of every tensor that is trained."""
        return {name: value.shape for name, value in self.template.named_parameters()}

    @cached_property
    def lora_A(self) -> Piece:
        return self.piece(_tensor(path, "lora_A") for path in self.targets)

    @cached_property
    def lora_B(self) -> Piece:
        return self.piece(_tensor(path, "lora_B") for path in self.targets)

    @cached_property
    def adapters(self) -> Piece:
        """Both factors of every adapter."""
        return self.piece([*self.lora_A.names, *self.lora_B.names])

    @cached_property
    def full_head(self) -> Piece | None:
        """What is trained as a whole, if anything is."""
        names = set(self.names) - set(self.adapters.names)
        return self.piece(names) if names else None

    def changes(self, params: Params) -> Params:
        """What adapters add to the weights of their layers: path -> scale * B A, [outputs, inputs].

        Factors may have a first dimension more, of clients or slots.
        """
        scale = self.spec.scale
        return {
            path: scale * (params[_tensor(path, "lora_B")] @ params[_tensor(path, "lora_A")])
            for path in self.targets
        }

    def merge(self, params: Params) -> Params:
        """The tensors of the net without adapters that give the same model: `net.plain(...)`.

        `params` are the tensors that the net is called with; factors may be wider than the net's
        own. For a client's model of any method, see `Personal.merged`.
        """
        self._check_own(params)
        whole = {**self.base, **{n: params[n] for n in self.plain_names if n in self.names}}
        for path, change in self.changes(params).items():
            name = self.weight_name(path)
            whole[name] = self._adapter(path).merge_change(whole[name].to(change.device), change)
        return {name: whole[name] for name in self.plain_names}

    def _check_own(self, params: Params) -> None:
        """Refuse tensors of others: they say that a model is more than its factors."""
        check_all_there(self, params)
        others = [name for name in params if name not in self.all_names]
        if others:
            raise NetError(f'"{others[0]}" is no tensor of the net with adapters', _ONE_NET)
        factors = {name: value for name, value in params.items() if name in self.adapters.names}
        for name, value in params.items():
            own = self.shapes.get(name, value.shape)
            fits = value.dim() == 2 if name in factors else value.shape == own
            if not fits:
                shapes = f"{list(value.shape)}, not {list(own)}"
                raise NetError(f'"{name}" is {shapes}: perhaps of several slots', _ONE_NET)

    @cached_property
    def constant_names(self) -> list[str]:
        known = {*self.names, *self.plain_names}
        return [name for name, _ in self.template.named_buffers() if name not in known]

    def _copy_template(self) -> nn.Module:
        """On the device of the template itself, the base is the template's own."""
        return copy_module(self.template, self.base.values())


def lora(
    net: Net | nn.Module | Callable[[], nn.Module],
    rank: int = 8,
    alpha: float = 16.0,
    targets: str | Sequence[str] = ALL,
    head: str | None = None,
    *,
    dtype: torch.dtype = torch.float32,
) -> LoraNet:
    """Return a net with an adapter beside each target layer, on a base that nobody trains.

    `targets` are paths of layers, or how these end ("query"); "all" is every dense layer, 1x1
    convolution and attention outside of the head. `head` is the path of a part that is trained as a
    whole. A module starts from its own weights; `dtype` is for modules, a net has its own.
    """
    if isinstance(net, LoraNet):
        fix = "give the net that it was made of, and all targets at once"
        raise NetError("the net has adapters already", fix)
    if isinstance(net, nn.Module):
        net = partial(_copy_of, net)
    plain = net if isinstance(net, Net) else Net(net, None, None, dtype)
    return LoraNet(plain, LoraSpec(rank, alpha, names_of_targets(targets), head))


def _copy_of(module: nn.Module) -> nn.Module:
    """A copy of which every parameter may train: what rests is said by `lora`."""
    return copy_module(module).requires_grad_(True)


def _make(make: Callable[[], nn.Module], spec: LoraSpec) -> nn.Module:
    """The module with adapters, its other parameters at rest but for the head's."""
    module = make()
    paths = find_targets(module, spec)
    module.__dict__[_LEFT_OUT] = tied_layers(module, spec)
    for path in paths:
        add_adapter(module.get_submodule(path), spec.rank, spec.scale)
    trained = set() if spec.head is None else set(module.get_submodule(spec.head).modules())
    put_to_rest(module, trained)
    return module


def _tensor(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
