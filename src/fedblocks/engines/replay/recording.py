"""Writes down which kernels a piece of code calls on which tensors, as a program that
can be run again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

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

    def same_as(self, other: Program) -> bool:
        """Whether both do the same to their inputs."""
        alike = (self.operations, self.first, self.inputs) == (
            other.operations,
            other.first,
            other.inputs,
        )
        return alike and all(self._same_constant(other, slot) for slot in self.constants)

    def _same_constant(self, other: Program, slot: Slot) -> bool:
        ours, theirs = self.constants[slot], other.constants.get(slot)
        if ours is theirs:
            return self.versions[slot] == other.versions[slot]
        return theirs is not None and torch.equal(ours, theirs)


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


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs operations as usual and writes them down."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # kept alive meanwhile, so that an identity means one tensor
        self.tensors: list[Tensor] = []
        self.slots: dict[int, Slot] = {}
        self.operations: list[RecordedCall] = []
        self.written: set[Slot] = set()
        self.repeatable = True
        self.inputs = tuple(self._slot(tensor) for tensor in inputs)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: torch would import its compiler for that, which takes seconds in every process."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.repeatable &= not _depends_on_numbers(func, args)
        refs = tuple(self._ref(a) for a in args)
        named = tuple((k, self._ref(v)) for k, v in (kwargs or {}).items())
        returned = func(*args, **(kwargs or {}))
        results = [
            r
            for r in (returned if isinstance(returned, tuple | list) else [returned])
            if isinstance(r, Tensor)
        ]
        if func is torch.ops.aten.detach.default:
            self._alias(results[0], args[0])
            return returned
        self.repeatable &= all(r.layout == torch.strided for r in results)
        new = [r for r in results if id(r) not in self.slots]
        outs = tuple(self._slot(r) for r in results)
        self.written |= {self._slot(r) for r in new}
        self.operations.append(RecordedCall(func, refs, named, outs))
        return returned

    def program(self, steady: int) -> Program | None:
        """What was written down, if it can be repeated; the first inputs stay the same
        for many runs.
        """
        if not self.repeatable:
            return None
        layouts = tuple(Layout.of(tensor) for tensor in self.tensors)
        numbers: dict[int, int] = {}
        storages = tuple(
            numbers.setdefault(t.untyped_storage()._cdata, n) for n, t in enumerate(self.tensors)
        )
        read = {slot for operation in self.operations for slot in operation.reads}
        constants = {s: self.tensors[s] for s in read - self.written - set(self.inputs)}
        versions = {s: 0 if t.is_inference() else t._version for s, t in constants.items()}
        empty = Program((), (), self.inputs, steady, {}, versions, layouts, storages)
        return arranged(empty, self.operations, constants)

    def _ref(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return Ref(self._slot(value))
        return tuple(self._ref(v) for v in value) if isinstance(value, list | tuple) else value

    def _slot(self, tensor: Tensor) -> Slot:
        if id(tensor) not in self.slots:
            self._alias(tensor, None)
        return self.slots[id(tensor)]

    def _alias(self, tensor: Tensor, of: Tensor | None) -> None:
        """Another tensor object, in a slot of its own or, detached, the same numbers as
        one that is known.
        """
        self.slots[id(tensor)] = len(self.tensors) if of is None else self._slot(of)
        self.tensors.append(tensor)


def _depends_on_numbers(func: Any, args: Any) -> bool:
    """Whether Python sees a number, or a shape that depends on numbers, through this operation."""
    if func is torch.ops.aten.mkldnn_rnn_layer.default:
        return True  # leaves what its backward needs only while gradients are taken
    if func is torch.ops.aten.index.Tensor:
        return any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])
    return (
        torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags
    )


def needed(operations: Sequence[RecordedCall]) -> list[RecordedCall]:
    """Without operations whose results nobody reads and which change nothing."""
    kept: list[RecordedCall] = []
    read: set[Slot] = set()
    for operation in reversed(operations):
        schema: Any = operation.call._schema  # type: ignore[attr-defined]
        if schema.is_mutable or not operation.outs or read & set(operation.outs):
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
