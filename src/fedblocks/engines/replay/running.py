"""Runs programs: what stays in its place is looked up once, for what a small kernel
costs is mostly the way to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedblocks.engines.replay.program import Layout, Program, RecordedCall, Ref, Slot

_FOR_WAY_BACK = 4  # results of a fused recurrent layer: outputs, two states, and its workspace
Thunk = Callable[[], Any]
# memory that programs share, since only one of them runs at a time
Arena = dict[tuple[Layout, int], Tensor]


class Machine:
    """A program with the memory that it works in, which is the same for all clients."""

    def __init__(self, program: Program, arena: Arena, direct: bool = False) -> None:
        # direct: by torch's own functions, where it has some
        self.program, self.direct = program, direct
        own = _own(program, arena)
        self.memory: list[Any] = [None] * len(program.layouts)
        for slot, tensor in (*program.constants.items(), *own.items()):
            self.memory[slot] = tensor
        moves = set(program.inputs[: program.steady])  # what is another tensor for another client
        self.first = [ready(operation) for operation in program.first if _moves(operation, moves)]
        run(
            [ready(operation) for operation in program.first if not operation.reads & moves],
            self.memory,
        )
        self.parts = [self._part(part, moves) for part in _parts(program)]
        read = {
            slot for operation in (*program.first, *program.operations) for slot in operation.reads
        }
        self.places = [
            own[slot] if slot in read else None for slot in program.inputs[program.steady :]
        ]

    def bound(self, inputs: Sequence[Tensor]) -> Callable[..., None]:
        """One run on these steady inputs, as a function of the others; those that it
        does not read may be missing.
        """
        memory, places = list(self.memory), self.places
        for slot, tensor in zip(self.program.inputs, inputs, strict=False):
            memory[slot] = tensor
        run(self.first, memory)
        calls = [part(memory) if isinstance(part, _Open) else part for part in self.parts]

        def step(*others: Any) -> None:
            for place, other in zip(places, others, strict=True):
                if place is not None:
                    place.copy_(other)
            for call in calls:
                call()

        return step

    def takes(self, other: int) -> bool:
        """Whether it reads one of the other inputs."""
        return self.places[other] is not None

    def _part(self, part: RecordedCall | list[Call], moves: set[Slot]) -> _Open | Thunk:
        """A call with all its tensors, if they are known already."""
        if isinstance(part, list):
            return _Open(lambda memory: partial(run, part, memory))
        complete = partial(_complete, part, _kernel(part, self.direct))
        return _Open(complete) if part.reads & moves else complete(self.memory)


def _own(program: Program, arena: Arena) -> dict[Slot, Tensor]:
    """Memory for the buffers and for what is another tensor in every run."""
    tensors: dict[Slot, Tensor] = {}
    taken: Counter[Layout] = Counter()
    for slot in (*program.buffers, *program.inputs[program.steady :]):
        layout = program.layouts[slot]
        taken[layout] += 1
        if (layout, taken[layout]) not in arena:
            arena[layout, taken[layout]] = layout.empty()
        tensors[slot] = arena[layout, taken[layout]]
    return tensors


@dataclass(frozen=True)
class _Open:
    """A call that waits for the memory it works in."""

    close: Callable[[list[Any]], Thunk]

    def __call__(self, memory: list[Any]) -> Thunk:
        return self.close(memory)


def _moves(operation: RecordedCall, moves: set[Slot]) -> bool:
    """Whether a view is of something that moves; if so it moves, too."""
    is_moved = bool(operation.reads & moves)
    if is_moved:
        moves |= set(operation.outs)
    return is_moved


def _complete(operation: RecordedCall, kernel: Callable[..., Any], memory: list[Any]) -> Thunk:
    args = [_filled(value, memory) for value in operation.args]
    kwargs = {name: _filled(value, memory) for name, value in operation.kwargs}
    return partial(kernel, *args, **kwargs)


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


def run(calls: Sequence[Call], memory: Any) -> None:
    """Call the kernels, one after another; the memory has a tensor for each slot that they read."""
    for kernel, plain, tensors, lists, kwargs, named, outs, done in calls:
        args = list(plain)
        for position, slot in tensors:
            args[position] = memory[slot]
        for position, slots in lists:
            args[position] = [None if slot is None else memory[slot] for slot in slots]
        if named:
            kwargs = {**kwargs, **{name: memory[slot] for name, slot in named}}
        returned = kernel(*args, **kwargs)
        if len(outs) == 1:
            memory[outs[0]] = returned if isinstance(returned, Tensor) else _only(returned)
        elif outs:
            for slot, value in zip(
                outs, (v for v in returned if isinstance(v, Tensor)), strict=True
            ):
                memory[slot] = value
        for slot in done:
            memory[slot] = None


def _only(returned: Sequence[Tensor | None]) -> Tensor:
    """The one tensor of several results: a convolution without a bias that reads the inputs has a
    gradient of its weights alone.
    """
    return next(value for value in returned if isinstance(value, Tensor))


def _parts(program: Program) -> list[RecordedCall | list[Call]]:
    """Operations on tensors that stay where they are; calls, in a row, that look into
    the memory.
    """
    stays = {*program.inputs, *program.constants, *program.buffers}
    stays |= {out for operation in program.first for out in operation.outs}
    parts: list[RecordedCall | list[Call]] = []
    for operation in program.operations:
        if operation.reads | set(operation.outs) <= stays:
            parts.append(operation)
        elif parts and isinstance(parts[-1], list):
            parts[-1].append(ready(operation))
        else:
            parts.append([ready(operation)])
    return parts


def _filled(value: Any, memory: list[Any]) -> Any:
    if isinstance(value, Ref):
        return memory[value.slot]
    return [_filled(v, memory) for v in value] if isinstance(value, tuple) else value


def ready(operation: RecordedCall) -> Call:
    """An operation as a call."""
    args = operation.args
    tensors = tuple((position, a.slot) for position, a in enumerate(args) if isinstance(a, Ref))
    lists = {
        position: a
        for position, a in enumerate(args)
        if isinstance(a, tuple) and any(_is_ref(v) for v in a)
    }
    slots = tuple(
        (position, tuple(v.slot if _is_ref(v) else None for v in a))
        for position, a in lists.items()
    )
    plain = tuple(
        None if isinstance(a, Ref) or n in lists else _plain(a) for n, a in enumerate(args)
    )
    named = tuple((name, a.slot) for name, a in operation.kwargs if isinstance(a, Ref))
    kwargs = {name: _plain(a) for name, a in operation.kwargs if not isinstance(a, Ref)}
    kernel = _kernel(operation, direct=False)
    return Call(kernel, plain, tensors, slots, kwargs, named, operation.outs, operation.done)


def _kernel(recorded: RecordedCall, direct: bool) -> Callable[..., Any]:
    """An operation without the Python around it; torch's own function of its name is a
    shorter way to the same.
    """
    call: Any = recorded.call
    operation: Callable[..., Any] = call._op
    if call is torch.ops.aten.mkldnn_rnn_layer.default and len(recorded.outs) == _FOR_WAY_BACK:
        return partial(_with_gradients, operation)
    return (
        getattr(torch._C._VariableFunctions, call.overloadpacket.__name__, operation)
        if direct
        else operation
    )


def _with_gradients(operation: Callable[..., Any], *args: Any) -> Any:
    """A fused recurrent layer leaves what its way back needs only while gradients are taken; in
    inference mode they build no graph.
    """
    with torch.enable_grad():
        return operation(*args)


def _is_ref(value: Any) -> bool:
    return isinstance(value, Ref)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
