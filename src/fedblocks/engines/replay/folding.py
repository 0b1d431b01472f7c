"""Leaves out of a program what is the same in every run: it is computed once and
becomes a constant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedblocks.engines.replay.program import (
    Layout,
    Program,
    RecordedCall,
    Ref,
    Slot,
    arranged,
)
from fedblocks.engines.replay.running import ready, run

aten = torch.ops.aten
_FILLED = {
    aten.new_ones.default: 1,
    aten.ones_like.default: 1,
    aten.new_zeros.default: 0,
    aten.zeros_like.default: 0,
}
_PICKS = (aten.index.Tensor, aten.index_select.default)
_LARGEST = 1 << 16  # numbers of a constant that we keep


def is_closed(program: Program) -> bool:
    """Whether it writes to its inputs only and draws no noise of torch's own, so that a
    trial leaves no trace.
    """
    operations: Any = (*program.first, *program.operations)
    changed = {program.storages[slot] for operation in operations for slot in written(operation)}
    noisy = any(
        torch.Tag.nondeterministic_seeded in operation.call.tags for operation in operations
    )
    return not noisy and not changed & {program.storages[slot] for slot in program.constants}


def folded(program: Program) -> Program:
    """The same program, a closed one, with fewer operations."""
    folder = _Folder(program)
    visited = [folder.visit(operation) for operation in (*program.first, *program.operations)]
    whole = replace(program, layouts=tuple(folder.layouts), storages=tuple(folder.storages))
    return arranged(
        whole, [operation for operation in visited if operation is not None], folder.known
    )


def renamed(operation: RecordedCall, names: Mapping[Slot, Slot]) -> RecordedCall:
    """An operation on other slots."""
    args = tuple(_renamed(value, names) for value in operation.args)
    kwargs = tuple((name, _renamed(value, names)) for name, value in operation.kwargs)
    return RecordedCall(
        operation.call, args, kwargs, tuple(names.get(slot, slot) for slot in operation.outs)
    )


def _renamed(value: Any, names: Mapping[Slot, Slot]) -> Any:
    if isinstance(value, Ref):
        return Ref(names.get(value.slot, value.slot))
    return tuple(_renamed(v, names) for v in value) if isinstance(value, tuple) else value


def written(operation: RecordedCall) -> frozenset[Slot]:
    """The tensors that an operation changes."""
    schema: Any = operation.call._schema  # type: ignore[attr-defined]
    values = {
        **dict(zip((a.name for a in schema.arguments), operation.args, strict=False)),
        **dict(operation.kwargs),
    }
    changed = [values[a.name] for a in schema.arguments if a.is_write and a.name in values]
    return replace(operation, args=tuple(changed), kwargs=()).reads


class _Folder:
    """Goes through a program once, from its first operation to its last."""

    def __init__(self, program: Program) -> None:
        self.known = dict(program.constants)
        self.layouts, self.storages = list(program.layouts), list(program.storages)
        self.picked: dict[Slot, Tensor] = {}  # numbers out of a constant
        self.names: dict[Slot, Slot] = {}
        operations = (*program.first, *program.operations)
        self.written = {
            self.storages[slot] for operation in operations for slot in written(operation)
        }

    def visit(self, operation: RecordedCall) -> RecordedCall | None:
        """The operation as it is to be; nothing if its results are known."""
        operation = renamed(operation, self.names)
        if not operation.outs or self.written & {self.storages[slot] for slot in operation.outs}:
            return operation
        if (
            self._filled(operation)
            or self._computed(operation)
            or self._differs(operation)
            or self._same(operation)
        ):
            return None
        if operation.call in _PICKS and operation.args[0].slot in self.known:
            self.picked[operation.outs[0]] = self.known[operation.args[0].slot]
        return (
            self._loss_slope(operation)
            if operation.call is aten.nll_loss_backward.default
            else operation
        )

    def _filled(self, operation: RecordedCall) -> bool:
        """Ones and zeros; they depend on the shape of another tensor, never on its numbers."""
        if operation.call not in _FILLED:
            return False
        (out,) = operation.outs
        self.known[out] = self.layouts[out].empty().fill_(_FILLED[operation.call])
        return True

    def _computed(self, operation: RecordedCall) -> bool:
        """What follows from constants alone."""
        large = any(
            torch.Size(self.layouts[out].shape).numel() > _LARGEST for out in operation.outs
        )
        if large or not operation.reads <= self.known.keys():
            return False
        with torch.no_grad():
            run([ready(operation)], self.known)
        return True

    def _differs(self, operation: RecordedCall) -> bool:
        """Numbers out of a constant that differ from one that is not in it at all:
        labels that are never left out.
        """
        if operation.call is not aten.ne.Scalar or operation.args[0].slot not in self.picked:
            return False
        (out,) = operation.outs
        if not bool((self.picked[operation.args[0].slot] != operation.args[1]).all()):
            return False
        self.known[out] = self.layouts[out].empty().fill_(1)
        return True

    def _same(self, operation: RecordedCall) -> bool:
        """A product with ones."""
        if operation.call is not aten.mul.Tensor or not all(
            isinstance(a, Ref) for a in operation.args
        ):
            return False
        (out,), (a, b) = operation.outs, operation.args
        for factor, other in ((a.slot, b.slot), (b.slot, a.slot)):
            alike = (
                self.layouts[factor] == self.layouts[out]
                and self.storages[factor] not in self.written
            )
            if alike and other in self.known and bool((self.known[other] == 1).all()):
                self._rename(out, factor)
                return True
        return False

    def _rename(self, slot: Slot, name: Slot) -> None:
        ours, theirs = self.storages[slot], self.storages[name]
        self.names[slot] = name
        self.storages = [theirs if storage == ours else storage for storage in self.storages]

    def _loss_slope(self, operation: RecordedCall) -> RecordedCall:
        """The gradient of losses that are not averaged: out of a table if all examples
        weigh the same.
        """
        (out,), (slope, scores, labels, weights, reduction, ignored, total) = (
            operation.outs,
            operation.args,
        )
        if reduction != 0:
            return operation
        classes = self.layouts[scores.slot].shape[-1]
        factor, source = self.known.get(slope.slot), self.picked.get(labels.slot)
        plain = (
            weights is None and len(self.layouts[scores.slot].shape) == 2 and classes**2 <= _LARGEST
        )
        if (
            plain
            and factor is not None
            and source is not None
            and _uniform(factor)
            and bool((source != ignored).all())
        ):
            table = torch.zeros(classes, classes, dtype=factor.dtype).fill_diagonal_(
                -float(factor[0])
            )
            return RecordedCall(
                aten.index_select.default, (self._constant(table), 0, labels), (), (out,)
            )
        # The sum of the weights is not looked at, and the operation that gives it can go.
        none = self._constant(torch.zeros((), dtype=self.layouts[total.slot].dtype))
        return replace(operation, args=(*operation.args[:6], none))

    def _constant(self, value: Tensor) -> Ref:
        """A new slot for a value of our own."""
        self.known[len(self.layouts)] = value
        self.storages.append(len(self.layouts))
        self.layouts.append(Layout.of(value))
        return Ref(len(self.layouts) - 1)


def _uniform(values: Tensor) -> bool:
    return values.numel() > 0 and bool((values == values.flatten()[0]).all())
