"""Makes a program faster without changing a bit: what never changes is computed once,
results go to fixed buffers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fedblocks.engines.replay.folding import folded, is_closed, renamed
from fedblocks.engines.replay.program import (
    Layout,
    Program,
    RecordedCall,
    Ref,
    Slot,
    arranged,
)
from fedblocks.engines.replay.running import Arena, Machine

aten = torch.ops.aten
# torch has no kernel for it that writes elsewhere
_IN_PLACE = {aten.relu.default: aten.relu_.default}


def fastest(program: Program, inputs: Sequence[Tensor], arena: Arena) -> Machine:
    """The program made faster if it does to copies of these inputs what it did before;
    else as it is.
    """
    plain = Machine(program, arena)
    if not is_closed(program):
        return plain
    try:
        fast = Machine(with_buffers(in_place(folded(program))), arena, direct=True)
        return fast if _agree(plain, fast, inputs) else plain
    except (
        RuntimeError,
        TypeError,
        ValueError,
        IndexError,
    ):  # a kernel refused what became of its arguments
        return plain


def in_place(program: Program) -> Program:
    """Results overwrite the arguments that nobody needs afterwards."""
    storages, names = list(program.storages), dict[Slot, Slot]()
    last, fixed = (
        _last_uses(program),
        {program.storages[s] for s in (*program.inputs, *program.constants)},
    )
    operations: list[RecordedCall] = []
    for number, operation in enumerate(_all(program)):
        operation = renamed(operation, names)
        if operation.call in _IN_PLACE:
            (out,), old = operation.outs, operation.args[0].slot
            ours, theirs = storages[out], storages[old]
            if (
                last[theirs] == number
                and theirs not in fixed
                and program.layouts[out] == program.layouts[old]
            ):
                names[out], last[theirs] = old, last[ours]
                storages = [theirs if storage == ours else storage for storage in storages]
                operation = replace(operation, call=_IN_PLACE[operation.call], outs=(old,))
        operations.append(operation)
    return arranged(replace(program, storages=tuple(storages)), operations, program.constants)


def with_buffers(program: Program) -> Program:
    """Results go to buffers that are made once; one whose content is not needed any
    more serves again.
    """
    last, free = _last_uses(program), dict[Layout, list[Slot]]()
    names, ends = dict[Slot, Slot](), dict[int, list[Slot]]()
    operations: list[RecordedCall] = []
    buffers: set[Slot] = set()
    for number, operation in enumerate(_all(program)):
        variant = _writing(operation.call)
        if variant is not None and _are_new(program, operation, variant):
            for out in operation.outs:
                names[out] = (free.get(program.layouts[out]) or [out]).pop()
                ends.setdefault(last[program.storages[out]], []).append(names[out])
            buffers |= {names[out] for out in operation.outs}
            into = zip(_outs(variant), (Ref(out) for out in operation.outs), strict=True)
            operation = replace(operation, call=variant, kwargs=(*operation.kwargs, *into), outs=())
        operations.append(renamed(operation, names))
        for slot in ends.get(number, []):
            free.setdefault(program.layouts[slot], []).append(slot)
    whole = replace(program, buffers=tuple(sorted(buffers)))
    return arranged(whole, operations, program.constants)


def _all(program: Program) -> Iterator[RecordedCall]:
    return (replace(operation, done=()) for operation in (*program.first, *program.operations))


def _last_uses(program: Program) -> dict[int, int]:
    """The last operation that touches each storage."""
    used = ((number, o.reads | set(o.outs)) for number, o in enumerate(_all(program)))
    return {program.storages[slot]: number for number, slots in used for slot in slots}


@cache
def _writing(call: Any) -> Any:
    """The overload that writes its results where it is told, if the CPU has a kernel of
    its own for it.
    """
    wanted = [(a.name, str(a.type)) for a in call._schema.arguments]
    for name in call.overloadpacket.overloads():
        overload = getattr(call.overloadpacket, name)
        inputs = [(a.name, str(a.type)) for a in overload._schema.arguments if not a.is_out]
        is_alike = inputs == wanted and bool(_outs(overload))
        if is_alike and torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), "CPU"):
            return overload
    return None


def _outs(call: Any) -> list[str]:
    return [a.name for a in call._schema.arguments if a.is_out]


def _are_new(program: Program, operation: RecordedCall, variant: Any) -> bool:
    """Whether all results of an operation are there, in memory of their own without gaps."""
    empties = [program.layouts[out].empty() for out in operation.outs]
    dense = all(t.untyped_storage().nbytes() == t.numel() * t.itemsize for t in empties)
    fresh = all(program.storages[out] == out for out in operation.outs)
    return len(operation.outs) == len(_outs(variant)) and dense and fresh


def _agree(plain: Machine, fast: Machine, inputs: Sequence[Tensor]) -> bool:
    """Whether two runs of each leave the same bits; two, since a buffer has something
    in it the second time.
    """
    copies = [_copies(plain.program, inputs) for _ in range(2)]
    if [Layout.of(t) for t in copies[0]] != [Layout.of(t) for t in inputs]:
        return False
    with torch.inference_mode():
        _run_twice(plain, copies[0])
        _run_twice(fast, copies[1])
    return all(torch.equal(_bits(a), _bits(b)) for a, b in zip(*copies, strict=True))


def _copies(program: Program, inputs: Sequence[Tensor]) -> list[Tensor]:
    """One copy of each tensor that the program looks at; the others as they are."""
    read = {slot for operation in (*program.first, *program.operations) for slot in operation.reads}
    pairs = list(zip(program.inputs, inputs, strict=True))
    own = {slot: tensor.clone() for slot, tensor in pairs if slot in read}
    return [own.get(slot, tensor) for slot, tensor in pairs]


def _run_twice(machine: Machine, inputs: Sequence[Tensor]) -> None:
    steady = machine.program.steady
    step = machine.bound(inputs[:steady])
    for _ in range(2):
        step(*inputs[steady:])


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)
