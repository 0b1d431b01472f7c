"""Whether a method's functions give the same answer to the same question: called again, with other
rows in the places that are padding, and, for an output, with other examples beside its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import Any, NoReturn

import torch
from torch import Tensor

from fedblocks.core.client import ClientStack, Step
from fedblocks.core.errors import UserError
from fedblocks.core.local_round import PhaseRun, loss_gradients
from fedblocks.core.method import Method
from fedblocks.core.own_code import last_name
from fedblocks.core.training_batch import batch_of
from fedblocks.core.trees import copy

_REAL = 8  # rows of the client that its functions are tried with
_PADDING = 40  # rows beside them: enough to turn a choice that counts them
_LABELS = 4  # rows of the data, by their targets, that stand in the padded places
_LOOKED_AT = 10_000  # rows of the data that they are chosen from
_BESIDE = 4  # padded rows of a batch, at first
# relative differences that rounding explains
_TOLERANCES = {torch.float64: 1e-9}
_ROUGH = 1e-4
_NAMELESS = "<lambda>"
_KEYED = "fedblocks.core.random.uniform({}.key, shape)"


@dataclass(frozen=True)
class Steadiness:
    """What is asked of the functions of one method."""

    kind: str  # the method's class
    dtype: torch.dtype  # of its net
    is_padded: bool  # an engine that pads may run it

    def check_hook(self, hook: Callable[..., Any], local: ClientStack, *args: Any) -> None:
        """Refuse `prepare`, `finish` and the like, if a client's answer changes."""
        if getattr(hook, "__func__", None) is getattr(Method, hook.__name__):
            return
        small = _with_rows(local, None)
        try:
            usual = small.call(hook, *copy(args))
            again = small.call(hook, *copy(args))
        except Exception:  # of so few examples, perhaps; with all of them it is said
            return
        if not self._is_same(usual, again):
            self._refuse_change(hook, "client")
        for row in _unlike_rows(local) if self.is_padded else ():
            try:
                padded = _with_rows(local, row).call(hook, *copy(args))
            except Exception:  # what it is given has one row for each example
                return
            if not self._is_same(usual, padded):
                fix = "use client.mask, client.mean(values) or client.total_loss(logits)"
                self._refuse_padding(hook, "client.x and client.y", fix)

    def check_function(self, function: Callable[..., Any], *args: Any) -> None:
        """Refuse a function of the server, or a projection, if its answer changes."""
        self.check_answers(function, function(*copy(args)), function(*copy(args)))

    def check_answers(self, function: Callable[..., Any], one: Any, other: Any) -> None:
        """Refuse it for two answers to one question that differ."""
        if not self._is_same(one, other):
            self._refuse_change(function, "")

    def check_loss(
        self, place: int, stretch: PhaseRun, step: Step, key: Tensor, usual: Sequence[Any]
    ) -> None:
        """Refuse a loss whose gradient, `usual` at first, changes."""
        loss, joined = stretch.phase.updates[place].loss, _joined(usual)
        again = _gradients(place, stretch, step, key, None)
        if not self._is_same(joined, _joined(again)):
            self._refuse_change(loss, "batch")
        if not self.is_padded:
            return
        rows = _unlike_rows(stretch.local)
        for beside in (rows[-1:].expand(_BESIDE), rows[:1].expand(len(step.index))):
            if not self._is_same(joined, _joined(_gradients(place, stretch, step, key, beside))):
                fix = "average by batch.loss(logits) or batch.mean(losses)"
                self._refuse_padding(loss, "batch", fix)

    def check_view(self, view: Callable[..., Any], blocks: Any, x: Tensor, usual: Tensor) -> None:
        """Refuse a prediction that depends on the examples beside it; `usual` is that of all."""
        before = x.clone()
        again = view(blocks, x)
        if not self._is_same(before, x):
            message = f"{self._name(view)} changes its input: others would get another x"
            raise UserError(message, "make a new tensor: x * 2 in the place of x.mul_(2)")
        if not self._is_same(usual, again):
            self._refuse_change(view, "")
        for rows in other_companies(x):
            try:
                outputs = view(blocks, x[rows])
            except Exception:  # of a net that takes no single example
                continue
            if outputs.shape != usual[rows].shape or not self._is_same(usual[rows], outputs):
                message = f"{self._name(view)} of an example is another when others are beside it"
                raise UserError(message, "compute each output from its own row of x alone")

    def _name(self, function: Any) -> str:
        name = last_name(function)
        return f"a function in {self.kind}" if name == _NAMELESS else f"{self.kind}.{name}"

    def _refuse_change(self, function: Any, what: str) -> NoReturn:
        message = (
            f"{self._name(function)} gives another result for the same input: it keeps something "
            "on self, or draws random numbers of its own"
        )
        noise = f", and noise by {_KEYED.format(what)}" if what else ""
        raise UserError(message, f"keep what changes in blocks{noise}")

    def _refuse_padding(self, function: Any, what: str, fix: str) -> NoReturn:
        message = (
            f"{self._name(function)} depends on rows of {what} that are padding, so that engines "
            "would give different results"
        )
        raise UserError(message, f'{fix}; engine = "sequential" never pads')

    def _is_same(self, one: Any, other: Any) -> bool:
        """Whether two answers differ by rounding at most, measured by a tensor's largest number."""
        tolerance = _TOLERANCES.get(self.dtype, _ROUGH)
        return all(
            torch.allclose(a, b, rtol=0, atol=tolerance * _largest(a), equal_nan=True)
            for a, b in _pairs(one, other)
        )


def _gradients(
    place: int, stretch: PhaseRun, step: Step, key: Tensor, rows: Tensor | None
) -> list[Tensor | None]:
    """Of a loss at the same place once more; with rows, they stand in padded places."""
    again = replace(stretch, blocks=copy(stretch.blocks))  # the pass writes its statistics there
    if rows is None:
        return loss_gradients(place, again, batch_of(stretch.local, step, key), step)
    index = torch.cat([step.index, step.index.new_full((len(rows),), -1)])
    step = replace(step, index=index, full=False)
    batch = batch_of(stretch.local, step, key)
    source = stretch.local.source
    for name, values in (("x", source.x), ("y", source.y)):
        batch[name][-len(rows) :] = values[rows].to(batch[name].dtype)
    return loss_gradients(place, again, batch, step)


def _joined(gradients: Sequence[Tensor | None]) -> Tensor:
    """All in one, so that those that are nothing but rounding are measured by the others."""
    return torch.cat([g.flatten().double() for g in gradients if g is not None] or [torch.zeros(0)])


def _with_rows(local: ClientStack, row: Tensor | None) -> ClientStack:
    """The client with a few of its rows, and with a row in many padded places, if there is one."""
    tensors = dict(local.tensors)
    for rows, size in (("rows", "size"), ("validation_rows", "validation_size")):
        few = tensors[rows][:_REAL]
        more = few[:0] if row is None else row.to(few.device).expand(_PADDING)
        # a table is never empty: what stands in it may be padding itself
        tensors[size] = tensors[size].clamp(max=len(few))
        tensors[rows] = torch.cat([few, more])
    return replace(local, tensors=tensors)


def _unlike_rows(local: ClientStack) -> Tensor:
    """Rows of the data with targets that differ, from the least to the largest: [rows]."""
    y = local.source.y[:_LOOKED_AT]
    is_known = local.source.task.scored(y).reshape(len(y), -1).all(1)  # [rows]
    rows = is_known.nonzero()[:, 0] if is_known.any() else torch.arange(len(y), device=y.device)
    targets = y[rows].reshape(len(rows), -1)[:, 0]
    order = rows[targets.argsort()]
    places = torch.linspace(0, len(order) - 1, min(_LABELS, len(order)), device=order.device)
    return order[places.long()]


def other_companies(x: Tensor) -> list[list[int]]:
    """Some examples in other company: the first alone, the last alone, all of them reversed."""
    return [[0], [len(x) - 1], [*reversed(range(len(x)))]]


def _largest(value: Tensor) -> float:
    finite = value.nan_to_num(0, 0, 0)
    return float(finite.abs().max()) if finite.numel() else 0.0


def _pairs(one: Any, other: Any) -> list[tuple[Tensor, Tensor]]:
    """The tensors of two answers side by side; of those with a row for each example, the rows that
    both have.
    """
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if one.shape == other.shape:
            return [(one.detach().double(), other.detach().double())]
        if one.dim() and other.dim() and one.shape[1:] == other.shape[1:]:
            least = min(len(one), len(other))
            return _pairs(one[:least], other[:least])
        return []
    if isinstance(one, dict) and isinstance(other, dict):
        return [pair for key in one for pair in _pairs(one[key], other.get(key))]
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return [pair for a, b in zip(one, other, strict=False) for pair in _pairs(a, b)]
    if is_dataclass(one) and type(one) is type(other):
        return _pairs(vars(one), vars(other))
    return []
