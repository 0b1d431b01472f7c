"""Writes down which kernels a piece of code calls on which tensors, as a program that
can be run again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from fedblocks.engines.replay.reads import Reads, shows_numbers

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


_NOWHERE = Layout((), (), torch.float32)


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs operations as usual and writes them down.

    Results live as long as they would without it: activations are freed as the step goes, and the
    next ones take their memory.
    """

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.slots: dict[int, Slot] = {}  # by identity, of tensors that are alive
        self.deaths: list[ref[Tensor]] = []  # take an identity out: another tensor may get it
        self.others: dict[Slot, Tensor] = {}  # inputs and constants: no operation made them
        self.layouts: list[Layout] = []
        self.storages: list[int] = []
        self.numbers: dict[int, int] = {}  # of storages, by address
        # memory may be freed, but not the address that stands for it
        self.addresses: list[StorageWeakRef] = []
        self.operations: list[RecordedCall] = []
        self.repeatable = True
        self.reads = Reads()
        self.inputs = tuple(self._slot(tensor) for tensor in inputs)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: torch would import its compiler for that, which takes seconds in every process."""
        return False

    def __enter__(self) -> Recorder:
        self.reads.__enter__()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self.reads.__exit__(*error)
        self.repeatable = self.repeatable and not self.reads.noticed

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():  # what is done here is no doing of the step
            return self._write_down(func, args, kwargs)

    def _write_down(self, func: Any, args: Any, kwargs: Any) -> Any:
        self.repeatable = self.repeatable and not shows_numbers(func, args)
        if not self.repeatable:
            return func(*args, **(kwargs or {}))
        refs = tuple(self._ref(a) for a in args)
        named = tuple((k, self._ref(v)) for k, v in (kwargs or {}).items())
        returned = func(*args, **(kwargs or {}))
        every = returned if isinstance(returned, tuple | list) else [returned]
        results = [r for r in every if isinstance(r, Tensor)]
        if func is torch.ops.aten.detach.default:
            self._alias(results[0], self._slot(args[0]))
            return returned
        outs = tuple(self._result(r) for r in results)
        self.operations.append(RecordedCall(func, refs, named, outs))
        return returned

    def program(self, steady: int) -> Program | None:
        """What was written down, if it can be repeated; the first inputs stay the same
        for many runs.
        """
        if not self.repeatable:
            return None
        constants = self._constants()
        versions = {slot: _version(tensor) for slot, tensor in constants.items()}
        layouts, storages = tuple(self.layouts), tuple(self.storages)
        written_down = tuple(self.operations)
        empty = Program(
            (), (), self.inputs, steady, {}, versions, layouts, storages, (), written_down
        )
        return arranged(empty, self.operations, constants)

    def repeats(self, program: Program) -> bool:
        """Whether the same was written down as for a program: that needs no new one to be made."""
        if not self.repeatable or self.inputs != program.inputs:
            return False
        constants = self._constants()
        return tuple(self.operations) == program.written_down and all(
            program.has_constant(slot, constants[slot], _version(constants[slot]))
            for slot in program.constants
        )

    def _constants(self) -> dict[Slot, Tensor]:
        return {slot: t for slot, t in self.others.items() if slot not in self.inputs}

    def _ref(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return Ref(self._slot(value))
        return tuple(self._ref(v) for v in value) if isinstance(value, list | tuple) else value

    def _slot(self, tensor: Tensor) -> Slot:
        """The place of an argument; one that no operation made is kept."""
        if id(tensor) not in self.slots:
            self.others[self._place(tensor)] = tensor
        return self.slots[id(tensor)]

    def _result(self, tensor: Tensor) -> Slot:
        """The place of a result: a new one, or that of an argument that was written to."""
        slot = self.slots[id(tensor)] if id(tensor) in self.slots else self._place(tensor)
        self._note(tensor, slot)  # an argument may lie otherwise now: `t_`
        return slot

    def _place(self, tensor: Tensor) -> Slot:
        slot = len(self.layouts)
        self.layouts.append(_NOWHERE)
        self.storages.append(slot)
        self._note(tensor, slot)
        self._alias(tensor, slot)
        return slot

    def _note(self, tensor: Tensor, slot: Slot) -> None:
        """How a tensor lies in memory; one that is sparse has no place that could be repeated."""
        if tensor.layout == torch.strided:
            self.layouts[slot] = Layout.of(tensor)
            self.storages[slot] = self._storage(tensor, slot)
        else:
            self.repeatable = False

    def _alias(self, tensor: Tensor, slot: Slot) -> None:
        """Another tensor object with the numbers of a slot."""
        self.slots[id(tensor)] = slot
        self.deaths.append(ref(tensor, partial(self.slots.pop, id(tensor))))

    def _storage(self, tensor: Tensor, slot: Slot) -> int:
        """The number of its memory, which is that of the first slot there."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self.numbers:
            self.numbers[storage._cdata] = slot
            self.addresses.append(StorageWeakRef(storage))  # type: ignore[no-untyped-call]
        return self.numbers[storage._cdata]


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


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
