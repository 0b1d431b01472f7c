"""A module that runs with given tensors in the place of its own."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from fedblocks.core.fields import fields_of
from fedblocks.core.forward_errors import take_note
from fedblocks.core.mode import current
from fedblocks.core.net_tensors import refuse_unknown
from fedblocks.core.parts import Params
from fedblocks.core.precision import call_in_half, is_half

Place = tuple[dict[str, Any], str]  # where a module keeps a tensor


class Template:
    """What `torch.func.functional_call` does, with the places looked up once: steps of
    small nets are mostly this.
    """

    def __init__(
        self,
        module: nn.Module,
        switch: Callable[[nn.Module, bool], None],
        guard: AbstractContextManager[Any] | None,
        dtype: torch.dtype,
        overwritten: Collection[str] = (),
    ) -> None:
        self.module, self.switch, self.guard, self.dtype = module, switch, guard, dtype
        self.overwritten = overwritten
        self.training = module.training
        self.places = tensor_places(module)

    def __call__(self, params: Params, call: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """What the module, or a part of it, makes of the inputs with these tensors."""
        before: list[tuple[dict[str, Any], str, Any]] = []
        self._follow_mode()
        try:
            for name, value in params.items():
                for owner, key in self.places.get(name) or refuse_unknown(params, self.places):
                    before.append((owner, key, owner[key]))
                    owner[key] = self._to_use(name, value)
            return self._guarded(call, *map(self._in_precision, inputs))
        except Exception as error:
            name = f"the net {type(self.module).__name__}"
            take_note(error, name, inputs[0], fields_of(self.module))
            raise
        finally:
            for owner, key, value in before:
                owner[key] = value

    def call_watching(self, layer: str, params: Params, x: Tensor) -> tuple[Any, Tensor]:
        """What the module makes of the inputs, and what one of its layers was given on the way."""
        seen: list[Tensor] = []
        watched = self.module.get_submodule(layer)
        handle = watched.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        try:
            return self(params, self.module, x), seen[0]
        finally:
            handle.remove()

    def _to_use(self, name: str, value: Tensor) -> Tensor:
        """A copy of what the module would write to and nobody trains: it may be the server's."""
        is_lent = name in self.overwritten and not value.requires_grad
        return value.clone() if is_lent else value

    def _in_precision(self, x: Tensor) -> Tensor:
        """Data are float32, whatever the net is."""
        return x.to(self.dtype) if x.is_floating_point() and x.dtype != self.dtype else x

    def _follow_mode(self) -> None:
        """`self.training` in the module is what the engine is doing."""
        if current().training != self.training:
            self.training = current().training
            self.switch(self.module, self.training)

    def _guarded(self, call: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        if self.guard is None or torch.compiler.is_exporting():
            return self._call(call, *inputs)
        with self.guard:
            return self._call(call, *inputs)

    def _call(self, call: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        result: Tensor = call_in_half(call, *inputs) if is_half() else call(*inputs)
        return result


def tensor_places(module: nn.Module) -> dict[str, list[Place]]:
    """Name of a tensor -> all places that hold it: several where layers share it."""
    by_tensor: dict[int, list[Place]] = {}
    by_name: dict[str, list[Place]] = {}
    for path, part in module.named_modules(remove_duplicate=False):
        for owner in (part._parameters, part._buffers):
            for key, value in owner.items():
                if value is not None:
                    places = by_tensor.setdefault(id(value), [])
                    if not any(known is owner and name == key for known, name in places):
                        places.append((owner, key))
                    by_name[f"{path}.{key}" if path else key] = places
    return by_name
