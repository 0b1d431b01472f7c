"""Trees of tensors and plain values as bytes: tensors in safetensors, the rest in JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import safetensors.torch
import torch
from torch import Tensor

Node: TypeAlias = "Tensor | int | float | str | bool | Sequence[Node] | Mapping[str, Node] | None"
Tree: TypeAlias = Mapping[str, Node]


def pack(tree: Tree) -> tuple[bytes, bytes]:
    """A tree as the contents of two files: tensors (safetensors) and everything else (JSON)."""
    tensors: dict[str, Tensor] = {}
    structure = _describe(tree, "", tensors)
    return safetensors.torch.save(tensors), json.dumps(structure, separators=(",", ":")).encode()


def unpack(tensors: bytes, structure: bytes) -> dict[str, Any]:
    """The tree that `pack` was given."""
    # A copy, because the loader's memory is not aligned as torch's own, and sums can differ in the
    # last bit with it.
    by_path = {path: tensor.clone() for path, tensor in safetensors.torch.load(tensors).items()}
    tree: dict[str, Any] = _rebuild(json.loads(structure), "", by_path)
    return tree


def _describe(node: Node, path: str, tensors: dict[str, Tensor]) -> Any:
    """JSON for a node: dicts as they are, ["list", ...] for a list, ["tensor"] for one
    that goes to `tensors`.
    """
    if isinstance(node, Tensor):
        tensors[path] = _plain(node, path)
        return ["tensor"]
    if isinstance(node, Mapping):
        return {key: _describe(child, _below(path, key), tensors) for key, child in node.items()}
    if isinstance(node, list):
        return [
            "list",
            *(_describe(child, _below(path, str(i)), tensors) for i, child in enumerate(node)),
        ]
    if node is None or type(node) in (bool, int, float, str):
        return node
    raise TypeError(
        f"{path}: a checkpoint holds tensors, numbers, text, lists and dicts, not "
        f"{type(node).__name__}"
    )


def _rebuild(node: Any, path: str, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(node, dict):
        return {key: _rebuild(child, _below(path, key), tensors) for key, child in node.items()}
    if isinstance(node, list) and node[0] == "list":
        return [_rebuild(child, _below(path, str(i)), tensors) for i, child in enumerate(node[1:])]
    return tensors[path] if isinstance(node, list) else node


def _below(path: str, key: str) -> str:
    """The path of a child; a key's own slashes are escaped as in JSON pointers, so two
    paths never meet.
    """
    if not isinstance(key, str):
        raise TypeError(
            f"{path}: the keys of a checkpoint are text, not {type(key).__name__} ({key!r})"
        )
    return f"{path}/{key.replace('~', '~0').replace('/', '~1')}"


def _plain(tensor: Tensor, path: str) -> Tensor:
    if tensor.layout is not torch.strided or tensor.is_complex() or tensor.is_quantized:
        raise TypeError(
            f"{path}: a checkpoint holds dense real tensors, not {tensor.dtype} with "
            f"{tensor.layout}"
        )
    # Always a copy: safetensors refuses tensors that share memory, such as tied weights.
    return tensor.to("cpu", copy=True, memory_format=torch.contiguous_format)
