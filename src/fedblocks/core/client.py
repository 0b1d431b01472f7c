"""One client as its method sees it, and one client or a stack of them as an engine runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MethodType
from typing import Any

import torch
from torch import Tensor

from fedblocks.core import mode
from fedblocks.core.hooks import noting
from fedblocks.core.method import Method
from fedblocks.core.numbers import holds_values, with_numbers
from fedblocks.core.parts import Blocks
from fedblocks.core.phases import Phase, Update
from fedblocks.core.task import CLASSIFICATION, Task

Mapped = Callable[..., Any]
# turns a function of one client into one of a stack of clients, or leaves it
Each = Callable[[Mapped], Mapped]


@dataclass(frozen=True, eq=False)
class RowSource:
    """The examples of all clients, on the device once."""

    x: Tensor  # [rows, ...]
    y: Tensor  # [rows], [rows, steps] or [rows, outputs]
    task: Task = CLASSIFICATION


@dataclass(frozen=True, eq=False)
class Client:
    """One client as its method sees it. Its data are looked up only when a method asks for them."""

    source: RowSource
    rows: Tensor  # [examples], rows of the source; padding repeats one
    size: Tensor  # [], how many of them are real
    validation_rows: Tensor  # [examples]
    validation_size: Tensor  # []
    id: Tensor  # []
    key: Tensor  # [], the source of noise in this round
    steps: Tensor  # [], batches that it trains on in this round, over all phases
    tags: dict[str, Tensor]  # integers that the data say of a client: its cohort, its device
    local: ClientStack

    @property
    def round(self) -> int | Tensor:
        """Rounds before this one: a number, or a tensor where a captured graph reads it anew."""
        return self.local.round

    @property
    def training(self) -> bool:
        """False while the client is being evaluated."""
        return self.local.training

    @property
    def task(self) -> Task:
        """What is learned."""
        return self.source.task

    @property
    def x(self) -> Tensor:
        """[examples, ...]; zero where it is padding, so that nothing of another client
        shows through.
        """
        x = self.source.x[self.rows]
        return torch.where(self.mask.view(-1, *[1] * (x.dim() - 1)) > 0, x, 0)

    @property
    def y(self) -> Tensor:
        return self.source.y[self.rows]

    @property
    def mask(self) -> Tensor:
        """[examples], 1 = real."""
        places = torch.arange(self.rows.shape[-1], device=self.rows.device)
        return (places < self.size).to(self.size.dtype)

    def total_loss(self, logits: Tensor) -> Tensor:
        """The sum of the losses of a model's answers on all of the client's training data: []."""
        return (self.task.summed_losses(logits, self.y)[0] * self.mask).sum()

    @property
    def validation(self) -> Client:
        """The same client with its validation part in the place of its training part."""
        return replace(self, rows=self.validation_rows, size=self.validation_size)

    def first(self, count: int) -> Client:
        """The same client with its first training examples only, where all would take
        too much memory.
        """
        return replace(self, rows=self.rows[:count], size=self.size.clamp(max=count))

    def mean(self, values: Tensor) -> Tensor:
        """The mean of something over the training examples: [examples, ...] -> [...];
        zero if there are none.
        """
        real = self.mask.view(-1, *[1] * (values.dim() - 1))
        return (values * real).sum(0) / self.size.clamp(min=1)


@dataclass(frozen=True, eq=False)
class Step:
    """The examples of one step, for one client or for the first `active` clients of a stack."""

    index: Tensor  # [batch] or [active, batch]: positions in the client's data, -1 = padding
    full: bool  # nothing in it is padding
    active: int | None = None  # None: one client


# clients, a hook, what it is given
Caller = Callable[["ClientStack", Callable[..., Any], tuple[Any, ...]], Any]

_OF_CLIENT = [f.name for f in fields(Client) if f.name not in ("source", "local")]
_DEFAULTS = (Method.prepare, Method.finish, Method.portrait, Method.writes, Method.wants)


@dataclass(frozen=True, eq=False)
class ClientStack:
    """One client, or a stack of clients along the first dimension, in one round."""

    source: RowSource
    # the tensor fields of Client; and `options`, `optimizers`, `round`: what clients that are
    # lanes have of their own
    tensors: dict[str, Any]
    round: int | Tensor
    training: bool
    each: Each  # identity for one client, vmap for a stack
    keep_optimizer: bool = False  # local optimizers go on from what the client kept
    # phase, place -> [clients], if they differ
    rates: Mapping[tuple[int, int], Tensor] = field(default_factory=dict)
    caller: Caller | None = None  # an engine's own way to run hooks
    # blocks that all clients have in common, without a dimension for them: what is mapped over
    # clients closes over them, so that they are held once and clients are rows of one batch
    frozen: Blocks = field(default_factory=dict)
    method: Method | None = None  # of all, but for the options that clients have of their own
    course: str = "phases"  # the function of the method that says the phases

    @property
    def mapped(self) -> bool:
        return bool(self.tensors["size"].dim() == 1)

    def client(self, tensors: dict[str, Any]) -> Client:
        local = replace(self, round=tensors["round"]) if "round" in tensors else self
        return Client(self.source, **{name: tensors[name] for name in _OF_CLIENT}, local=local)

    def own(
        self, function: Mapped, tensors: dict[str, Any], find: Callable[[Method], Any]
    ) -> Mapped:
        """A function of the method as one client has it: with the client's options, where those
        of the stack differ. `find` makes it anew, if it may hold options of the first.
        """
        if not tensors["options"]:
            return function
        method = with_numbers(self.method, tensors["options"])
        if getattr(function, "__self__", None) is self.method:
            return MethodType(function.__func__, method)  # type: ignore[attr-defined]
        own: Mapped = find(method) if holds_values(function) else function  # type: ignore[arg-type]
        return own

    def own_phase(self, number: int, method: Method) -> Phase:
        """A phase of a client's own method."""
        phases: list[Phase] = getattr(method, self.course)()
        return phases[number]

    def own_update(self, number: int, turn: int, method: Method) -> Update:
        """An update of a client's own method."""
        return self.own_phase(number, method).updates[turn]

    def call(self, hook: Callable[..., Any], *args: Any) -> Any:
        """A method's hook, given the client as its last argument; a hook that was left
        as it is costs nothing.
        """
        if getattr(hook, "__func__", None) in _DEFAULTS:
            return hook(*args, None)
        return self.plainly(hook, *args) if self.caller is None else self.caller(self, hook, args)

    def whole(self, blocks: Blocks) -> Blocks:
        """Blocks as a method's functions are given them, frozen ones among them."""
        return {**blocks, **self.frozen} if self.frozen else blocks

    def plainly(self, hook: Callable[..., Any], *args: Any) -> Any:
        """A hook as it is; what it says of frozen blocks is not listened to."""

        def with_client(tensors: dict[str, Any], *rest: Any) -> Any:
            own = self.own(hook, tensors, lambda method: getattr(method, hook.__name__))
            task = self.source.task
            with (
                noting(self.method, hook.__name__),
                mode.mode(training=False, mapped=self.mapped, task=task),
            ):
                return without(self.frozen, own(*map(self.whole, rest), self.client(tensors)))

        return self.each(with_client)(self.tensors, *args)

    def first(self, count: int | None) -> ClientStack:
        """The first clients of a stack."""
        if count is None or count == len(self.tensors["size"]):
            return self
        rates = {key: values[:count] for key, values in self.rates.items()}
        return replace(self, tensors=first(self.tensors, count), rates=rates)


def without(frozen: Blocks, result: Any) -> Any:
    """What a hook says, less what it says of frozen blocks."""
    if not frozen:
        return result
    return {name: value for name, value in result.items() if name not in frozen}


def first(tree: Any, count: int) -> Any:
    """Views of the first clients of a stack; what is written to them is written to the stack."""
    return {k: first(v, count) for k, v in tree.items()} if isinstance(tree, dict) else tree[:count]
