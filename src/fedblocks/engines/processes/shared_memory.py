"""Trees of tensors in memory that several processes see: written once, read without a copy."""

from __future__ import annotations

import mmap
import os
import weakref
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

Tree = dict[str, Any]  # tensors by name, nested
Shapes = dict[str, Any]  # the same names; for each tensor [dtype, shape]
# the same names; for each tensor [dtype, shape, offset, the first dimension repeats one row]
Places = dict[str, Any]

_ALIGNED = 64  # bytes: as torch allocates, so that kernels do the same sums in the same order


@dataclass(frozen=True, eq=False)
class SharedTree:
    """A tree of tensors with the file, which has no name on any disk, that holds their numbers."""

    descriptor: int
    places: Places
    tree: Tree
    memory: weakref.ref[mmap.mmap]  # dead once the last of the tensors is

    def close(self) -> None:
        """Give up the file; the memory lives on as long as its tensors."""
        os.close(self.descriptor)


def share(tree: Tree) -> SharedTree:
    """A copy of a tree for other processes; what all clients have in common is copied once."""
    places, size = _place(tree, 0)
    shared = _create(places, size)
    _fill(shared.tree, tree)
    return shared


def room_for(shapes: Shapes) -> SharedTree:
    """Room for tensors that other processes will write."""
    return _create(*_place(shapes, 0))


def open_tree(descriptor: int, places: Places) -> SharedTree:
    """The tree that another process made, by the file it sent."""
    size = os.fstat(descriptor).st_size
    memory = mmap.mmap(descriptor, size)
    tree = _views(places, torch.frombuffer(memory, dtype=torch.uint8))
    return SharedTree(descriptor, places, tree, weakref.ref(memory))


class Room:
    """Room for the results of one job after another; it serves again once nobody looks at what was
    in it.

    Pages that are written for the first time cost more than what is written to them.
    """

    def __init__(self) -> None:
        self.shapes: Shapes = {}
        self.descriptor: int | None = None
        self.places: Places = {}
        self.memory: weakref.ref[mmap.mmap] | None = None
        self.known: set[int] = set()  # workers that have it open

    def of(self, shapes: Shapes) -> Tree:
        """The room, for tensors of these shapes."""
        in_use = self.memory is not None and self.memory() is not None
        if self.descriptor is None or shapes != self.shapes or in_use:
            self.close()
            shared = room_for(shapes)
            self.shapes = shapes
            self.known = set()
        else:
            shared = open_tree(self.descriptor, self.places)
        self.descriptor = shared.descriptor
        self.places = shared.places
        self.memory = shared.memory
        return shared.tree

    def key(self, worker: int) -> int | None:
        """The file for a worker that does not have it yet."""
        new = worker not in self.known
        self.known.add(worker)
        return self.descriptor if new else None

    def forget(self, worker: int) -> None:
        """A worker is gone, and the next one with its number does not have it."""
        self.known.discard(worker)

    def close(self) -> None:
        """Give it up; what is in it lives on as long as somebody looks at it."""
        if self.descriptor is not None:
            os.close(self.descriptor)
        self.descriptor = None


def shapes_of(tree: Tree, count: int) -> Shapes:
    """What room a tree of one client needs for several: the first dimension grows."""
    shapes: Shapes = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            shapes[name] = shapes_of(value, count)
        else:
            shapes[name] = [_name(value.dtype), [count, *value.shape[1:]]]
    return shapes


def put(tree: Tree, member: int, one: Tree) -> None:
    """Write the tree of one client to its row."""
    for name, value in one.items():
        if isinstance(value, dict):
            put(tree[name], member, value)
        else:
            tree[name][member].copy_(value[0].detach())


def _create(places: Places, size: int) -> SharedTree:
    descriptor = os.memfd_create("fedblocks", os.MFD_CLOEXEC)
    os.truncate(descriptor, max(size, 1))
    return open_tree(descriptor, places)


def _place(tree: Tree | Shapes, offset: int) -> tuple[Places, int]:
    """A place for each tensor, one after the other, and where the last one ends."""
    places: Places = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            places[name], offset = _place(value, offset)
        else:
            dtype, shape, repeats = _leaf(value)
            places[name] = [dtype, shape, offset, repeats]
            end = offset + _numbers(shape, repeats) * getattr(torch, dtype).itemsize
            offset = -(-end // _ALIGNED) * _ALIGNED
    return places, offset


def _leaf(value: Tensor | list[Any]) -> tuple[str, list[int], bool]:
    if isinstance(value, list):
        return value[0], value[1], False
    repeats = value.dim() > 0 and len(value) > 1 and value.stride(0) == 0
    return _name(value.dtype), list(value.shape), repeats


def _views(places: Places, memory: Tensor) -> Tree:
    return {
        name: _views(p, memory) if isinstance(p, dict) else _view(memory, *p)
        for name, p in places.items()
    }


def _view(memory: Tensor, dtype: str, shape: list[int], offset: int, repeats: bool) -> Tensor:
    kind = getattr(torch, dtype)
    numbers = memory[offset : offset + _numbers(shape, repeats) * kind.itemsize].view(kind)
    return numbers.view(1, *shape[1:]).expand(shape) if repeats else numbers.view(shape)


def _fill(to: Tree, values: Tree) -> None:
    for name, value in values.items():
        if isinstance(value, dict):
            _fill(to[name], value)
        elif _leaf(value)[2]:
            to[name][:1].copy_(value[:1])
        else:
            to[name].copy_(value)


def _numbers(shape: list[int], repeats: bool) -> int:
    return prod(shape[1:] if repeats else shape)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
