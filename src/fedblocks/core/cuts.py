"""Where a net may be cut: its layers by their paths, and tensors that must stay together."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from fedblocks.core.errors import NetError, UserError, nearest

_LINEAR = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Embedding)
_SEQUENCES = (nn.LSTM, nn.GRU, nn.RNN, nn.MultiheadAttention)


def last_layer(module: nn.Module) -> str:
    """The path of the last layer with parameters: the head, where none is named."""
    paths: list[str] = [path for path, part in module.named_modules() if has_own_parameters(part)]
    if not paths:
        raise UserError("the net has no layer with parameters", "give a module that can be trained")
    return paths[-1]


def linear_layers(module: nn.Module) -> list[str]:
    """The paths of the layers that train and whose weights multiply; what is inside one belongs
    to it.
    """
    paths: list[str] = []
    for path, part in module.named_modules():
        inside = any(path.startswith(f"{outer}.") for outer in paths)
        trains = any(True for _ in part.parameters())  # in a base at rest, no layer does
        if trains and isinstance(part, (*_LINEAR, *_SEQUENCES)) and not inside:
            paths.append(path)
    return paths


def check_path(module: nn.Module, names: Iterable[str], path: str) -> None:
    """Refuse a path that leads to no module and no tensor of the net; "" is the module itself."""
    known = {known for known, _ in module.named_modules()} | set(names)
    if path not in known:
        raise UserError(f'the net has no module "{path}"', nearest(path, known))


def check_cut(module: nn.Module, what: str, paths: Iterable[str]) -> None:
    """Refuse a cut that leaves a shared tensor, under one name or another, on both sides of it."""
    paths = list(paths)
    for names in shared_tensors(module):
        inside = [name for name in names if is_under(name, paths)]
        outside = [name for name in names if name not in inside]
        if inside and outside:
            raise NetError(
                f'"{inside[0]}" in the {what} of the net and "{outside[0]}" outside it are one '
                "tensor, which cannot be in two places",
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


def owners_of(module: nn.Module) -> dict[str, set[str]]:
    """The layers that have each parameter: several, where they share it under its first name."""
    first: dict[int, str] = {}
    owners: dict[str, set[str]] = {}
    for name, value in module.named_parameters(remove_duplicate=False):
        known = first.setdefault(id(value), name)
        owners.setdefault(known, set()).add(name.rpartition(".")[0])
    return owners


def is_under(name: str, paths: Iterable[str]) -> bool:
    """Whether a tensor is one of these, or of a module that is."""
    return any(not path or name == path or name.startswith(f"{path}.") for path in paths)


def has_own_parameters(module: nn.Module) -> bool:
    return any(True for _ in module.parameters(recurse=False))
