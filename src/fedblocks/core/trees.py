"""Trees of tensors: dicts, lists and tuples, nested in any way, with a tensor at every leaf."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

Tree = Any  # a tensor, or a dict, list or tuple of trees


def leaves(tree: Tree) -> Iterator[Any]:
    """Yield the leaves of a tree in order."""
    if isinstance(tree, dict | list | tuple):
        for branch in tree.values() if isinstance(tree, dict) else tree:
            yield from leaves(branch)
    else:
        yield tree


def map_leaves(function: Callable[..., Any], tree: Tree, *others: Tree) -> Any:
    """Apply a function to the leaves of a tree, together with those at the same place
    of other trees.
    """
    if isinstance(tree, dict):
        return {
            name: map_leaves(function, branch, *(other[name] for other in others))
            for name, branch in tree.items()
        }
    if isinstance(tree, list | tuple):
        return type(tree)(
            map_leaves(function, *branches) for branches in zip(tree, *others, strict=True)
        )
    return function(tree, *others)


def concatenate(trees: Sequence[Tree]) -> Any:
    """Join trees along the first dimension of every tensor; one alone is returned as it is."""
    return trees[0] if len(trees) == 1 else map_leaves(lambda *tensors: torch.cat(tensors), *trees)


def stack(trees: Sequence[Tree]) -> Any:
    """Put trees side by side, with a new first dimension."""
    return map_leaves(lambda *tensors: torch.stack(tensors), *trees)


def take(tree: Tree, rows: Any) -> Any:
    """Index the first dimension of every tensor: by a number, a slice, a mask or a
    tensor of numbers.
    """
    return map_leaves(lambda tensor: tensor[rows], tree)


def split(tree: Tree, counts: Sequence[int]) -> list[Any]:
    """Cut a tree of dicts along the first dimension of its tensors: a tree for each count."""
    return _cut(tree, lambda tensor: torch.split(tensor, list(counts)), len(counts))


def unbind(tree: Tree, count: int) -> list[Any]:
    """Cut a tree of dicts, whose tensors have this many rows, into a tree for each row."""
    return _cut(tree, torch.unbind, count)


def _cut(tree: Tree, cut: Callable[[Tensor], Sequence[Tensor]], count: int) -> list[Any]:
    if not isinstance(tree, dict):
        return list(cut(tree))
    branches = {name: _cut(branch, cut, count) for name, branch in tree.items()}
    return [{name: pieces[place] for name, pieces in branches.items()} for place in range(count)]


def is_close(one: Tensor, other: Tensor, tolerance: float) -> bool:
    """Whether two tensors differ by rounding at most, measured by the first one's largest number;
    whole numbers not at all.
    """
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.is_floating_point() or not one.numel():
        return torch.equal(one, other)
    largest = float(one.nan_to_num(0, 0, 0).abs().max())
    return torch.allclose(one, other, rtol=0, atol=tolerance * largest, equal_nan=True)


def is_repeated(tensor: Tensor) -> bool:
    """Whether all rows are views of the same one."""
    return tensor.dim() > 0 and tensor.stride(0) == 0


def copy(tree: Tree) -> Any:
    """Copy a tree to memory of its own; rows that are views of the same one stay so."""
    return map_leaves(lambda t: t[:1].clone().expand_as(t) if is_repeated(t) else t.clone(), tree)


def in_order(tree: Tree) -> Any:
    """The same tree with numbers that lie in their order, as in a checkpoint: last bits of a
    product may depend on how they lie.
    """
    return map_leaves(torch.Tensor.contiguous, tree)


def own_in_order(tree: Tree) -> Any:
    """Copies in memory of their own, whose numbers lie in their order."""
    return map_leaves(lambda tensor: tensor.clone(memory_format=torch.contiguous_format), tree)


def shapes(tree: Tree) -> Hashable:
    """Names, shapes and dtypes, and which tensors repeat one row; something to look
    recordings up by.
    """
    if isinstance(tree, dict):
        return tuple((name, shapes(branch)) for name, branch in tree.items())
    if isinstance(tree, list | tuple):
        return tuple(map(shapes, tree))
    return tuple(tree.shape), tree.dtype, is_repeated(tree)
