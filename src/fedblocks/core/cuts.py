"""Where a net may be cut: tensors that layers share must not come to lie on both sides."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from fedblocks.core.errors import NetError


def check_cut(module: nn.Module, what: str, paths: Iterable[str]) -> None:
    """Refuse a cut that leaves a shared tensor, under one name or another, on both sides of it."""
    paths = list(paths)
    for names in shared_tensors(module):
        inside = [name for name in names if is_under(name, paths)]
        outside = [name for name in names if name not in inside]
        if inside and outside:
            raise NetError(
                f'"{inside[0]}" in the {what} of the net and "{outside[0]}" outside it are one '
                f"tensor, "
                "which cannot be in two places",
                "give each its own tensor, or name a cut that has both on one side: Net.of(..., "
                "head=...)",
            )


def check_not_empty(what: str, path: str, names: Iterable[str]) -> None:
    """Refuse a side of the net that has nothing in it."""
    if not any(True for _ in names):
        head = f'"{path}"' if path else "the whole module"
        raise NetError(
            f"the {what} of the net has no tensors: its head is {head}",
            "name a layer with tensors before and after it: Net.of(..., head=...)",
        )


def shared_tensors(module: nn.Module) -> list[list[str]]:
    """The names of each parameter that has several."""
    names: dict[int, list[str]] = {}
    for name, value in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(value), []).append(name)
    return [several for several in names.values() if len(several) > 1]


def is_under(name: str, paths: Iterable[str]) -> bool:
    """Whether a tensor is one of these, or of a module that is."""
    return any(not path or name == path or name.startswith(f"{path}.") for path in paths)
