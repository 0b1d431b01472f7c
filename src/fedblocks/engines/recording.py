"""Writes down which kernels a piece of code calls on which tensors, as a program that can be run again."""

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
class Operation:
    """One call of a kernel."""

    call: Callable[..., Any]
    args: tuple[Any, ...]  # refs, lists of refs, plain values
    kwargs: tuple[tuple[str, Any], ...]
    outs: tuple[Slot, ...]  # where its results go
    done: tuple[Slot, ...] = ()  # not needed any more afterwards: their memory is used again at once


@dataclass(frozen=True, eq=False)
class Program:
    """Operations on inputs that are bound anew, and on constants."""

    first: tuple[Operation, ...]  # views of what is bound once for many runs
    operations: tuple[Operation, ...]  # of every run
    inputs: tuple[Slot, ...]
    constants: dict[Slot, Tensor]
    slots: int

    def bound(self, inputs: Sequence[Tensor | None]) -> list[Any]:
        """The memory of some runs; an input may be left out, and be put into its slot before each run."""
        memory: list[Any] = [None] * self.slots
        for slot, tensor in (*self.constants.items(), *zip(self.inputs, inputs, strict=True)):
            memory[slot] = tensor
        run(ready(self.first), memory)
        return memory

    @cached_property
    def calls(self) -> tuple[Call, ...]:
        """What one run does."""
        return ready(self.operations)

    def same_as(self, other: Program) -> bool:
        """Whether both do the same to their inputs."""
        alike = (self.operations, self.first, self.inputs) == (other.operations, other.first, other.inputs)
        return alike and all(_same(value, other.constants.get(slot)) for slot, value in self.constants.items())


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs operations as usual and writes them down."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tensors: list[Tensor] = []  # kept alive meanwhile, so that an identity means one tensor
        self.slots: dict[int, Slot] = {}
        self.operations: list[Operation] = []
        self.made: set[Slot] = set()
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
        found = func(*args, **(kwargs or {}))
        results = [r for r in (found if isinstance(found, tuple | list) else (found,)) if isinstance(r, Tensor)]
        if func is torch.ops.aten.detach.default:
            self._alias(results[0], args[0])
            return found
        new = [r for r in results if id(r) not in self.slots]
        outs = tuple(self._slot(r) for r in results)
        self.made |= {self._slot(r) for r in new}
        self.operations.append(Operation(func, refs, named, outs))
        return found

    def program(self, steady: int) -> Program:
        """What was written down; the first inputs stay the same for many runs."""
        kept = _needed(self.operations)
        first, others = _split(kept, set(self.inputs[:steady]))
        keep = {out for operation in first for out in operation.outs} | set(self.inputs)
        used = {slot for operation in kept for slot in _reads(operation)}
        constants = {s: self.tensors[s] for s in used - self.made - set(self.inputs)}
        return Program(first, _freeing(others, keep | set(constants)), self.inputs, constants, len(self.tensors))

    def _ref(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return Ref(self._slot(value))
        return tuple(self._ref(v) for v in value) if isinstance(value, list | tuple) else value

    def _slot(self, tensor: Tensor) -> Slot:
        if id(tensor) not in self.slots:
            self._alias(tensor, None)
        return self.slots[id(tensor)]

    def _alias(self, tensor: Tensor, of: Tensor | None) -> None:
        """Another tensor object, in a slot of its own or, detached, the same numbers as one that is known."""
        self.slots[id(tensor)] = len(self.tensors) if of is None else self._slot(of)
        self.tensors.append(tensor)


class Call(NamedTuple):
    """An operation made ready: only the tensors are left to be filled in."""

    kernel: Callable[..., Any]
    args: tuple[Any, ...]  # plain values, and None where a tensor goes
    tensors: tuple[tuple[int, Slot], ...]  # position, slot
    lists: tuple[tuple[int, tuple[Slot | None, ...]], ...]  # position, slots
    kwargs: dict[str, Any]
    named: tuple[tuple[str, Slot], ...]
    outs: tuple[Slot, ...]
    done: tuple[Slot, ...]


def ready(operations: Sequence[Operation]) -> tuple[Call, ...]:
    """Operations as calls; done once, since what a small kernel costs is mostly the way to it."""
    return tuple(_ready(operation) for operation in operations)


def run(calls: Sequence[Call], memory: list[Any]) -> None:
    """Call the kernels, one after another."""
    for kernel, plain, tensors, lists, kwargs, named, outs, done in calls:
        args = list(plain)
        for position, slot in tensors:
            args[position] = memory[slot]
        for position, slots in lists:
            args[position] = [None if slot is None else memory[slot] for slot in slots]
        if named:
            kwargs = {**kwargs, **{name: memory[slot] for name, slot in named}}
        found = kernel(*args, **kwargs)
        if len(outs) == 1:
            memory[outs[0]] = found if isinstance(found, Tensor) else found[0]
        elif outs:
            for slot, value in zip(outs, (v for v in found if isinstance(v, Tensor)), strict=True):
                memory[slot] = value
        for slot in done:
            memory[slot] = None


def _ready(operation: Operation) -> Call:
    args = operation.args
    tensors = tuple((position, a.slot) for position, a in enumerate(args) if isinstance(a, Ref))
    lists = {position: a for position, a in enumerate(args) if isinstance(a, tuple) and any(_is_ref(v) for v in a)}
    slots = tuple((position, tuple(v.slot if _is_ref(v) else None for v in a)) for position, a in lists.items())
    plain = tuple(None if isinstance(a, Ref) or n in lists else _plain(a) for n, a in enumerate(args))
    named = tuple((name, a.slot) for name, a in operation.kwargs if isinstance(a, Ref))
    kwargs = {name: _plain(a) for name, a in operation.kwargs if not isinstance(a, Ref)}
    kernel = getattr(operation.call, "_op", operation.call)  # without the Python function around it
    return Call(kernel, plain, tensors, slots, kwargs, named, operation.outs, operation.done)


def _is_ref(value: Any) -> bool:
    return isinstance(value, Ref)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _depends_on_numbers(func: Any, args: Any) -> bool:
    """Whether Python sees a number, or a shape that depends on numbers, through this operation."""
    if func is torch.ops.aten.mkldnn_rnn_layer.default:
        return True  # leaves what its backward needs only while gradients are taken
    if func is torch.ops.aten.index.Tensor:
        return any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])
    return torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags


def _reads(operation: Operation) -> set[Slot]:
    found: set[Slot] = set()
    waiting = [*operation.args, *(value for _, value in operation.kwargs)]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Ref):
            found.add(value.slot)
        elif isinstance(value, tuple):
            waiting.extend(value)
    return found


def _needed(operations: Sequence[Operation]) -> list[Operation]:
    """Without operations whose results nobody reads and which change nothing."""
    kept: list[Operation] = []
    read: set[Slot] = set()
    for operation in reversed(operations):
        schema: Any = operation.call._schema  # type: ignore[attr-defined]
        if schema.is_mutable or not operation.outs or read & set(operation.outs):
            kept.append(operation)
            read |= _reads(operation)
    return kept[::-1]


def _split(operations: Sequence[Operation], steady: set[Slot]) -> tuple[tuple[Operation, ...], list[Operation]]:
    """Views of what stays in its place need be made only once; all other operations."""
    first, others = [], []
    steady = set(steady)
    for operation in operations:
        view: bool = operation.call.is_view  # type: ignore[attr-defined]
        if view and _reads(operation) <= steady:
            first.append(operation)
            steady |= set(operation.outs)
        else:
            others.append(operation)
    return tuple(first), others


def _freeing(operations: Sequence[Operation], keep: set[Slot]) -> tuple[Operation, ...]:
    """With what each operation is the last to use."""
    found: list[Operation] = []
    later = set(keep)
    for operation in reversed(operations):
        here = _reads(operation) | set(operation.outs)
        found.append(replace(operation, done=tuple(sorted(here - later))))
        later |= here
    return tuple(found[::-1])


def _same(value: Tensor, other: Tensor | None) -> bool:
    return value is other or (other is not None and value.shape == other.shape and torch.equal(value, other))
