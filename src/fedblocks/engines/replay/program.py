"""A program: which kernels are called on which tensors, in the order that repeats a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedblocks.engines.failing_operations import checks_matrices

Slot = int  # the place of a tensor in a program


@dataclass(frozen=True)
class Ref:
    """A tensor among the arguments of an operation."""

    slot: Slot


@dataclass(frozen=True)
class RecordedCall:
    """One call of a kernel."""

    call: Callable[..., Any]
    args: tuple[Any, ...]  # refs, lists of refs, plain values
    kwargs: tuple[tuple[str, Any], ...]
    outs: tuple[Slot, ...]  # where its results go
    # not needed any more afterwards: their memory is used again at once
    done: tuple[Slot, ...] = ()

    @cached_property
    def reads(self) -> frozenset[Slot]:
        """The tensors that it is given."""
        slots: set[Slot] = set()
        waiting = [*self.args, *(value for _, value in self.kwargs)]
        while waiting:
            value = waiting.pop()
            if isinstance(value, Ref):
                slots.add(value.slot)
            elif isinstance(value, tuple):
                waiting.extend(value)
        return frozenset(slots)


class Layout(NamedTuple):
    """How a tensor lies in memory."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @staticmethod
    def of(tensor: Tensor) -> Layout:
        return Layout(tuple(tensor.shape), tensor.stride(), tensor.dtype)

    def empty(self) -> Tensor:
        """Memory of this kind."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype)


@dataclass(frozen=True, eq=False)
class Program:
    """Operations on inputs that are bound anew, on constants, and on buffers that keep
    their place.
    """

    first: tuple[RecordedCall, ...]  # views of what is bound once for many runs
    operations: tuple[RecordedCall, ...]  # of every run
    inputs: tuple[Slot, ...]
    steady: int  # inputs, the first ones, that stay the same for many runs
    constants: dict[Slot, Tensor]
    versions: dict[Slot, int]  # of the constants: how often each was written to before
    layouts: tuple[Layout, ...]  # of each slot
    storages: tuple[int, ...]  # of each slot; those with the same number share memory
    buffers: tuple[Slot, ...] = ()
    written_down: tuple[RecordedCall, ...] = ()  # all operations, as they came

    def same_as(self, other: Program) -> bool:
        """Whether both do the same to their inputs."""
        alike = (self.operations, self.first, self.inputs) == (
            other.operations,
            other.first,
            other.inputs,
        )
        return alike and all(self._same_constant(other, slot) for slot in self.constants)

    def _same_constant(self, other: Program, slot: Slot) -> bool:
        theirs = other.constants.get(slot)
        return theirs is not None and self.has_constant(slot, theirs, other.versions[slot])

    def has_constant(self, slot: Slot, tensor: Tensor, version: int) -> bool:
        """Whether a constant is this tensor, unwritten since, or has the same numbers."""
        ours = self.constants[slot]
        if ours is tensor:
            return self.versions[slot] == version
        return torch.equal(ours, tensor)


def arranged(
    program: Program, operations: Sequence[RecordedCall], constants: dict[Slot, Tensor]
) -> Program:
    """A program of other operations: views that need be made only once come first, what
    nobody needs is left out.
    """
    kept = needed(operations)
    used = {slot for operation in kept for slot in operation.reads}
    constants = {slot: tensor for slot, tensor in constants.items() if slot in used}
    stays = {*program.inputs, *program.buffers, *constants}
    first, others = _split(kept, stays)
    keep = {out for operation in first for out in operation.outs} | stays
    return replace(program, first=first, operations=_freeing(others, keep), constants=constants)


def needed(operations: Sequence[RecordedCall]) -> list[RecordedCall]:
    """Without operations whose results nobody reads and which change nothing, not even the way by
    an error.
    """
    kept: list[RecordedCall] = []
    read: set[Slot] = set()
    for operation in reversed(operations):
        schema: Any = operation.call._schema  # type: ignore[attr-defined]
        acts = schema.is_mutable or not operation.outs or checks_matrices(operation.call)
        if acts or read & set(operation.outs):
            kept.append(operation)
            read |= operation.reads
    return kept[::-1]


def _split(
    operations: Sequence[RecordedCall], steady: set[Slot]
) -> tuple[tuple[RecordedCall, ...], list[RecordedCall]]:
    """Views of what stays in its place need be made only once; all other operations."""
    first, others = [], []
    steady = set(steady)
    for operation in operations:
        view: bool = operation.call.is_view  # type: ignore[attr-defined]
        if view and operation.reads <= steady:
            first.append(operation)
            steady |= set(operation.outs)
        else:
            others.append(operation)
    return tuple(first), others


def _freeing(operations: Sequence[RecordedCall], keep: set[Slot]) -> tuple[RecordedCall, ...]:
    """With what each operation is the last to use."""
    calls: list[RecordedCall] = []
    later = set(keep)
    for operation in reversed(operations):
        here = operation.reads | set(operation.outs)
        calls.append(replace(operation, done=tuple(here - later)))
        later |= here
    return tuple(calls[::-1])
