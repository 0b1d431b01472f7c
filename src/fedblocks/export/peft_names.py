"""The tensors of adapters under the names and in the shapes that peft gives them."""

from __future__ import annotations

import re
from collections.abc import Collection

import torch
from torch import Tensor, nn

from fedblocks.core.errors import UserError
from fedblocks.core.lora import LoraNet
from fedblocks.core.parts import Params
from fedblocks.layers.lora import LoraAttention, LoraConv2d, LoraEmbedding, LoraTransposed

PREFIX = "base_model.model."  # what peft wraps a module in
FACTORS = ("lora_A", "lora_B")
# parts that peft puts into a layer
INNER = ("base_layer", "lora_A", "lora_B", "lora_dropout", "lora_magnitude_vector", "default",
         "lora_embedding_A", "lora_embedding_B", "out_proj")  # fmt: skip
OUTPUT = "base_layer.out_proj."  # attention has a second adapter there


def to_peft(net: LoraNet, params: Params) -> Params:
    """The tensors that a net with adapters is called with, as peft stores them."""
    tensors: Params = {}
    for path in net.targets:
        layer = net.template.get_submodule(path)
        factors = [params[f"{path}.{factor}"] for factor in FACTORS]
        if isinstance(layer, LoraEmbedding) and layer.padding_idx is not None:
            row = torch.tensor(layer.padding_idx)  # whose adapter peft would use
            factors[0] = factors[0].index_fill(1, row, 0.0)
        for name, value in zip(_names(layer, path), factors, strict=True):
            tensors[name] = value[..., None, None] if isinstance(layer, LoraConv2d) else value
        if isinstance(layer, LoraAttention):
            for name, value in zip(_outputs(path), factors, strict=True):
                tensors[name] = torch.zeros(
                    _output_shape(value, layer.embed_dim), dtype=value.dtype
                )
    head = [] if net.full_head is None else net.full_head.names
    tensors |= {f"{PREFIX}{name}": params[name] for name in head}
    return {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}


def from_peft(net: LoraNet, tensors: Params) -> Params:
    """The reverse; tensors that the net has no place for are refused."""
    left, params = dict(tensors), {}
    for path in net.targets:
        layer = net.template.get_submodule(path)
        for name, factor in zip(_names(layer, path), FACTORS, strict=True):
            value = _take(left, name)
            params[f"{path}.{factor}"] = (
                value[..., 0, 0] if isinstance(layer, LoraConv2d) else value
            )
        if isinstance(layer, LoraAttention):
            _refuse_output([left.pop(name, None) for name in _outputs(path)], path)
    head = [] if net.full_head is None else net.full_head.names
    params |= {name: _take(left, f"{PREFIX}{name}") for name in head}
    if left:
        first = next(iter(left))
        message = f'"{first}" belongs to no adapter of the net, and not to its head'
        raise UserError(message, "give fb.lora the targets and the head of the peft config")
    return {name: value.to(net.dtype) for name, value in params.items()}


def _names(layer: nn.Module, path: str) -> list[str]:
    if isinstance(layer, LoraEmbedding):
        return [f"{PREFIX}{path}.lora_embedding_{letter}" for letter in "AB"]
    return [f"{PREFIX}{path}.{factor}.weight" for factor in FACTORS]


def _outputs(path: str) -> list[str]:
    return [f"{PREFIX}{path}.{OUTPUT}{factor}.weight" for factor in FACTORS]


def _output_shape(factor: Tensor, width: int) -> tuple[int, ...]:
    """B of the output projection is as wide as attention; A has the shape of the other."""
    return (width, factor.shape[1]) if factor.shape[0] == 3 * width else tuple(factor.shape)


def _refuse_output(factors: list[Tensor | None], path: str) -> None:
    if all(factor is not None and factor.any() for factor in factors):
        raise UserError(
            f'the adapter of the attention "{path}" has a part on its output projection, which '
            "has none here",
            "merge it into the base in peft (merge_and_unload), and start from there",
        )


def _take(tensors: Params, name: str) -> Tensor:
    if name not in tensors:
        fix = "give fb.lora the targets and the head of the peft config"
        raise UserError(f'the peft adapter has no tensor "{name}"', fix)
    return tensors.pop(name)


def target_modules(net: LoraNet) -> list[str] | str:
    """How a peft config names exactly the targets of a net: by paths, or where the end of another
    path is the same, by a pattern. What peft cannot say is refused.
    """
    paths = [path for path, _ in net.template.named_modules() if path]
    if not all(net.targets):
        fix = "put the layer into a module, nn.Sequential(layer)"
        raise UserError("peft has no adapter for a module that is itself the target", fix)
    _check_head(net, paths)
    matched = [p for p in paths if any(p == t or p.endswith(f".{t}") for t in net.targets)]
    if matched == [p for p in paths if p in net.targets]:
        return list(net.targets)
    return "|".join(re.escape(path) for path in net.targets)


def _check_head(net: LoraNet, paths: Collection[str]) -> None:
    """peft saves every part whose name ends as the head's does, and adapts nothing inside of what
    is called like it.
    """
    head = net.spec.head
    if head is None:
        return
    also = next((p for p in (*paths, *INNER) if p.endswith(head) and p != head), None)
    inside = rf"(^|.*\.){head}($|\..*)"
    also = also or next((p for p in net.targets if re.match(inside, p)), None)
    if also is not None:
        raise UserError(
            f'peft would take "{also}" for the head "{head}", which has a like name',
            "give the head a name of its own, or use fb.personal(...).merged()",
        )


def is_transposed(net: LoraNet) -> bool:
    """Whether weights of the targets are [inputs, outputs], which a peft config says."""
    return all(isinstance(net.template.get_submodule(p), LoraTransposed) for p in net.targets)
