"""Which layers of a module get adapters, and why others cannot."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from torch import nn

from fedblocks.core.cuts import check_path, is_under, shared_tensors
from fedblocks.core.errors import NetError, UserError, a_kind, nearest
from fedblocks.layers.lora import FITTING, adapter_size, form_with_adapter, why_unfit

ALL = "all"  # every layer but embeddings that an adapter fits


@dataclass(frozen=True)
class LoraSpec:
    """Which layers get adapters, and of what size."""

    rank: int = 8
    alpha: float = 16.0  # the scale of an adapter is alpha / rank
    targets: tuple[str, ...] = (ALL,)  # paths of layers, or how these end
    head: str | None = None  # a part that is trained as a whole

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


def find_targets(module: nn.Module, spec: LoraSpec) -> list[str]:
    """The paths of the layers that get an adapter, in the net's order."""
    if any(type(part).__module__.startswith("peft.") for part in module.modules()):
        fix = "give its base, fb.lora_from_peft(base, config), or model.merge_and_unload()"
        raise NetError("the module has adapters of peft already", fix)
    if spec.head is not None:
        check_path(module, [], spec.head)
        _check_tied(module, [spec.head], "the head")
    outside = _outside_of_head(module, spec)
    chosen: dict[str, None] = {}
    for target in spec.targets:
        chosen |= dict.fromkeys(_find_target(module, outside, target))
    for path in chosen:
        _check_target(module, path, spec.rank)
    return [path for path in outside if path in chosen]


def tied_layers(module: nn.Module, spec: LoraSpec) -> list[str]:
    """The paths of layers that "all" would name, were a tensor of theirs not also another's."""
    if ALL not in spec.targets:
        return []
    usual = _usual(_outside_of_head(module, spec))
    return [path for path in usual if _tie(module, [path]) is not None]


def _outside_of_head(module: nn.Module, spec: LoraSpec) -> dict[str, nn.Module]:
    return {
        path: part
        for path, part in module.named_modules()
        if spec.head is None or not is_under(path, [spec.head])
    }


def _find_target(module: nn.Module, outside: dict[str, nn.Module], target: str) -> list[str]:
    if target == ALL:
        matching = [path for path in _usual(outside) if _tie(module, [path]) is None]
        if not matching:
            message = "no layer outside of the head fits an adapter"
            raise UserError(message, f"adapters fit {FITTING}, if no other layer has its tensors")
        return matching
    layers = [path for path, part in outside.items() if _has_tensors(part)]
    matching = [p for p in layers if p == target or p.endswith(f".{target}")]
    if not matching:
        fitting = [path for path, part in outside.items() if _fits(path, part, outside)]
        message = f'no layer outside of the head matches the target "{target}"'
        raise UserError(message, nearest(target, fitting) if fitting else f"adapters fit {FITTING}")
    return matching


def _usual(outside: dict[str, nn.Module]) -> list[str]:
    """The layers that fit, but for embeddings."""
    parts = outside.items()
    return [
        p for p, part in parts if _fits(p, part, outside) and not isinstance(part, nn.Embedding)
    ]


def _has_tensors(part: nn.Module) -> bool:
    """Whether a part has tensors itself; weights that were quantised are no parameters."""
    return any(True for _ in (*part.parameters(False), *part.buffers(False)))


def _fits(path: str, part: nn.Module, outside: dict[str, nn.Module]) -> bool:
    return form_with_adapter(part) is not None and not _is_in_attention(path, outside)


def _is_in_attention(path: str, parts: dict[str, nn.Module]) -> bool:
    """Attention uses the tensors of its inner layers, and never calls them."""
    return isinstance(parts.get(path.rpartition(".")[0]), nn.MultiheadAttention)


def _check_target(module: nn.Module, path: str, rank: int) -> None:
    layer = module.get_submodule(path)
    parts = dict(module.named_modules())
    if _is_in_attention(path, parts):
        outer = path.rpartition(".")[0]
        raise NetError(
            f'the target "{path}" is inside the attention "{outer}", which does not call it',
            f'name "{outer}": its adapter serves queries, keys and values',
        )
    if why := why_unfit(layer):
        raise NetError(
            f'the target "{path}" is {a_kind(layer)} {why}',
            f"adapters fit {FITTING}; leave it out",
        )
    weight = getattr(layer, "weight", None)
    if weight is not None and not weight.is_floating_point():
        kind = str(weight.dtype).removeprefix("torch.")
        raise NetError(
            f'the weights of the target "{path}" are {kind}, to which no adapter can be added',
            "give the module before it was quantised, or leave the layer out",
        )
    _check_tied(module, [path], f'the target "{path}"')
    size = adapter_size(layer)
    if rank > min(size):
        raise UserError(
            f'rank = {rank} is above the size of the layer "{path}", which maps {size.inputs} to '
            f"{size.outputs}",
            f"choose a rank of at most {min(size)}, or leave the layer out of the targets",
        )


def _check_tied(module: nn.Module, paths: list[str], what: str) -> None:
    """Refuse tensors that another layer uses, too: it would see another model, or none."""
    tie = _tie(module, paths)
    if tie is not None:
        raise NetError(
            f'{what} has the tensor "{tie[0]}", which is also "{tie[1]}": tied layers are not '
            "supported",
            "leave one of the two out, or give each its own tensor",
        )


def _tie(module: nn.Module, paths: list[str]) -> tuple[str, str] | None:
    """A tensor of some parts, and the name that it has in another."""
    for names in shared_tensors(module):
        inside = [name for name in names if is_under(name, paths)]
        others = [name for name in names if name not in inside]
        if inside and others:
            return inside[0], others[0]
    return None


def check_spec(spec: LoraSpec, dtype: torch.dtype) -> None:
    _check_kinds(spec)
    if spec.rank < 1:
        raise UserError(f"rank = {spec.rank} leaves no adapter", "choose a rank of at least 1")
    if not 0 < spec.alpha < inf:
        wrong = "not above 0" if spec.alpha <= 0 else "no finite number"
        raise UserError(f"alpha = {spec.alpha} is {wrong}", "choose e.g. twice the rank")
    if not dtype.is_floating_point or torch.finfo(dtype).bits < 32:
        raise UserError(
            f"adapters in {str(dtype).removeprefix('torch.')} lose digits in every product of "
            "their factors",
            "use float32: fb.lora(module, dtype=torch.float32); of a net, in Net.of(...)",
        )


def _check_kinds(spec: LoraSpec) -> None:
    """Refuse what is no number, or no name."""
    rank, alpha, head = spec.rank, spec.alpha, spec.head
    if isinstance(rank, bool) or not isinstance(rank, int):
        raise UserError(f"rank = {rank!r} is no whole number", "choose e.g. rank=8")
    if isinstance(alpha, bool) or not isinstance(alpha, int | float):
        raise UserError(f"alpha = {alpha!r} is no number", "choose e.g. alpha=16")
    if head is not None and not isinstance(head, str):
        raise UserError(f"head = {head!r} is no path", 'name a part of the net: head="classifier"')


def names_of_targets(targets: Any) -> tuple[str, ...]:
    """Targets as they were said, as a tuple of names."""
    names = (targets,) if isinstance(targets, str) else targets
    if not isinstance(names, Iterable) or not all(isinstance(name, str) for name in names):
        message = f"targets = {targets!r} are no names of layers"
        raise UserError(message, 'name some, targets=("query", "value"), or say "all"')
    names = tuple(names)
    if not names:
        message = "targets = () names no layer, so that there would be no adapter"
        raise UserError(message, 'name some, or say "all"')
    return names
