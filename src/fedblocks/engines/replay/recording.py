"""Writes down which kernels a piece of code calls on which tensors, as a program that
can be run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from fedblocks.engines.replay.program import Layout, Program, RecordedCall, Ref, Slot, arranged
from fedblocks.engines.replay.reads import Reads, shows_numbers

_NAMES = "profiler"  # of operations that name what others take, and compute nothing
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
        if not self.repeatable or func.namespace == _NAMES:
            return func(*args, **(kwargs or {}))
        refs = tuple(self._ref(a) for a in args)
        named = tuple((k, self._ref(v)) for k, v in (kwargs or {}).items())
        try:
            returned = func(*args, **(kwargs or {}))
        except Exception:
            self.repeatable = False  # by other numbers it goes well, and the step another way
            raise
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
        # such as packed weights: no two can be compared
        self.repeatable = self.repeatable and not isinstance(value, torch.ScriptObject)
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
