"""What one client does in one round. Engines differ only in how they map this over clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedblocks.core import mode
from fedblocks.core.method import Method
from fedblocks.core.optimizers import Count, Memory
from fedblocks.core.parts import OPTIMIZER, Blocks, Params, is_statistic
from fedblocks.core.phases import Batch, Phase, Pull, Update
from fedblocks.core.random import fold
from fedblocks.core.schedules import at

Mapped = Callable[..., Any]
Each = Callable[[Mapped], Mapped]  # turns a function of one client into one of a stack of clients, or leaves it


@dataclass(frozen=True, eq=False)
class Source:
    """The examples of all clients, on the device once."""

    x: Tensor  # [rows, ...]
    y: Tensor  # [rows] or [rows, steps]


@dataclass(frozen=True, eq=False)
class Client:
    """One client as its method sees it. Its data are looked up only when a method asks for them."""

    source: Source
    rows: Tensor  # [examples], rows of the source; padded with 0
    size: Tensor  # [], how many of them are real
    validation_rows: Tensor  # [examples]
    validation_size: Tensor  # []
    id: Tensor  # []
    key: Tensor  # [], the source of noise in this round
    steps: Tensor  # [], batches that it trains on in this round, over all phases
    tags: dict[str, Tensor]  # integers that the data say of a client: its cohort, its device
    round: int
    training: bool  # False while it is being evaluated

    @property
    def x(self) -> Tensor:
        return self.source.x[self.rows]

    @property
    def y(self) -> Tensor:
        return self.source.y[self.rows]

    @property
    def mask(self) -> Tensor:
        """[examples], 1 = real."""
        return (torch.arange(self.rows.shape[-1], device=self.rows.device) < self.size).to(self.size.dtype)

    @property
    def validation(self) -> Client:
        """The same client with its validation part in the place of its training part."""
        return replace(self, rows=self.validation_rows, size=self.validation_size)


@dataclass(frozen=True, eq=False)
class Step:
    """The examples of one step, for one client or for the first `active` clients of a stack."""

    index: Tensor  # [batch] or [active, batch]: positions in the client's data, -1 = padding
    full: bool  # nothing in it is padding
    active: int | None = None  # None: one client


_DEFAULTS = (Method.prepare, Method.finish, Method.writes, Method.wants)


@dataclass(frozen=True, eq=False)
class Local:
    """One client, or a stack of clients along the first dimension, in one round."""

    source: Source
    tensors: dict[str, Any]  # the tensor fields of Client
    round: int
    training: bool
    each: Each  # identity for one client, vmap for a stack
    keep_optimizer: bool = False  # local optimizers go on from what the client kept

    @property
    def mapped(self) -> bool:
        return bool(self.tensors["size"].dim() == 1)

    def client(self, tensors: dict[str, Any]) -> Client:
        return Client(self.source, **tensors, round=self.round, training=self.training)

    def call(self, hook: Callable[..., Any], *args: Any) -> Any:
        """A method's hook, given the client as its last argument; a hook that was left as it is costs nothing."""
        if getattr(hook, "__func__", None) in _DEFAULTS:
            return hook(*args, None)

        def with_client(tensors: dict[str, Any], *rest: Any) -> Any:
            with mode.mode(training=False, mapped=self.mapped):
                return hook(*rest, self.client(tensors))

        return self.each(with_client)(self.tensors, *args)

    def first(self, count: int | None) -> Local:
        """The first clients of a stack."""
        if count is None or count == len(self.tensors["size"]):
            return self
        return replace(self, tensors=_first(self.tensors, count))


def local_round(
    method: Method, phases: Sequence[Phase], blocks: Blocks, local: Local, orders: Sequence[Sequence[Step]]
) -> tuple[Blocks, dict[str, Tensor]]:
    """What one client (or a stack of them) does in one round: its blocks afterwards, and its weights."""
    start = local.call(method.prepare, blocks)
    blocks = local.call(method.finish, train(phases, start, local, orders), start)
    return blocks, local.call(method.writes, blocks)


def train(phases: Sequence[Phase], start: Blocks, local: Local, orders: Sequence[Sequence[Step]]) -> Blocks:
    """Run the phases on working copies of the blocks that they move."""
    blocks, steps = start, 0
    for number, (phase, order) in enumerate(zip(phases, orders, strict=True)):
        if phase.begin is not None:
            blocks = local.each(phase.begin)(blocks)
        blocks = {n: {k: v.clone() for k, v in b.items()} if n in phase.train else b for n, b in blocks.items()}
        names = [f"{OPTIMIZER}{number}/{turn}" for turn in range(len(phase.updates))]
        memories = [_memory(update, blocks, name, local) for update, name in zip(phase.updates, names, strict=True)]
        for count, step in enumerate(order, 1):
            steps += 1
            _run_step(phase, blocks, start, local.first(step.active), step, memories, count, steps)
        if local.keep_optimizer:
            blocks |= {name: _packed(memory) for name, memory in zip(names, memories, strict=True)}
    return blocks


def _run_step(
    phase: Phase,
    blocks: Blocks,
    start: Blocks,
    local: Local,
    step: Step,
    memories: list[Memory],
    count: int,
    number: int,
) -> None:
    if step.active is not None:
        blocks, start = _first(blocks, step.active), _first(start, step.active)
        memories = [{k: [v[: step.active] for v in values] for k, values in memory.items()} for memory in memories]
    batch = _batch(local, step, number)
    for update, memory in zip(phase.updates, memories, strict=True):
        for turn in range(update.repeat):
            _apply(update, blocks, start, batch, local, step, memory, (count - 1) * update.repeat + turn + 1)


def _first(tree: Any, count: int) -> Any:
    """Views of the first clients of a stack; what is written to them is written to the stack."""
    return {k: _first(v, count) for k, v in tree.items()} if isinstance(tree, dict) else tree[:count]


def _batch(local: Local, step: Step, number: int) -> dict[str, Tensor]:
    index, tensors = step.index, local.tensors
    real = index.clamp(min=0)
    where = tensors["rows"].gather(-1, real)
    mask = (index >= 0).to(tensors["size"].dtype)
    x, y = local.source.x[where], local.source.y[where]
    return {"x": x, "y": y, "mask": mask, "index": real, "key": fold(tensors["key"], number)}


def _apply(
    update: Update,
    blocks: Blocks,
    start: Blocks,
    batch: dict[str, Tensor],
    local: Local,
    step: Step,
    memory: Memory,
    count: int,
) -> None:
    """One gradient step, in place on the working copies."""
    params = _trained(update, blocks)
    grads = _gradients(update, blocks, batch, local, step)
    if update.pull is not None:
        _add_pull(update.pull, update, blocks, start, grads)
    with torch.no_grad():
        number = _counted(memory, count)
        update.optimizer.step([p for _, _, p in params], grads, memory, at(update.lr, local.round), number)
        if update.project is not None:
            moved = {name: blocks[name] for name in update.train}
            _copy(blocks, local.each(update.project)(moved))


def _gradients(update: Update, blocks: Blocks, batch: dict[str, Tensor], local: Local, step: Step) -> list[Tensor]:
    params = _trained(update, blocks)
    if update.loss is None:
        return [torch.zeros_like(p) for _, _, p in params]
    live: Blocks = {name: dict(blocks[name]) for name in update.train}
    leaves = [p.detach().requires_grad_() for _, _, p in params]
    for (name, key, _), leaf in zip(params, leaves, strict=True):
        live[name][key] = leaf
    loss, statistics = local.each(_loss_of(update, local, step))({**blocks, **live}, batch, local.tensors)
    grads = torch.autograd.grad(loss.sum(), leaves, allow_unused=True)
    _copy(blocks, statistics)
    return [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, grads, strict=True)]


def _loss_of(update: Update, local: Local, step: Step) -> Mapped:
    """The loss and the statistics that the forward pass left behind, as a function of one client."""

    def loss(blocks: Blocks, batch: dict[str, Tensor], client: dict[str, Any]) -> tuple[Tensor, Blocks]:
        blocks = {n: {k: v.clone() if is_statistic(k) else v for k, v in b.items()} for n, b in blocks.items()}
        mask = None if step.full else batch["mask"]
        with mode.mode(training=True, mapped=local.mapped, mask=mask, key=batch["key"]):
            value = update.loss(blocks, Batch(**batch, client=local.client(client)))  # type: ignore[misc]
        moved = {n: {k: v for k, v in blocks[n].items() if is_statistic(k)} for n in update.train}
        return value, {n: b for n, b in moved.items() if b}

    return loss


def _trained(update: Update, blocks: Blocks) -> list[tuple[str, str, Tensor]]:
    """(block, name, tensor) of everything that a gradient moves."""
    return [(n, k, v) for n in update.train for k, v in blocks[n].items() if not is_statistic(k)]


def _memory(update: Update, blocks: Blocks, name: str, local: Local) -> Memory:
    """What an optimizer remembers at the start of a phase: nothing, or what the client kept, with its own count."""
    params = [p for _, _, p in _trained(update, blocks)]
    memory = update.optimizer.memory(params)
    if local.keep_optimizer:
        memory[_COUNT] = [torch.zeros_like(local.tensors["size"])]
        kept = blocks.get(name)
        if kept is not None:
            memory = {moment: [kept[f"{moment}/{i}"].clone() for i in range(len(v))] for moment, v in memory.items()}
    return memory


_COUNT = "count"  # steps that a client has taken in all rounds


def _packed(memory: Memory) -> Params:
    return {f"{moment}/{i}": value for moment, values in memory.items() for i, value in enumerate(values)}


def _counted(memory: Memory, count: int) -> Count:
    """The number of this step: since the phase began, or since the client kept count."""
    if _COUNT not in memory:
        return count
    return memory[_COUNT][0].add_(1).clone()


def _add_pull(pull: Pull, update: Update, blocks: Blocks, start: Blocks, grads: list[Tensor]) -> None:
    to = blocks[pull.to] if pull.live else start[pull.to]
    for position, ((name, key, value), grad) in enumerate(zip(_trained(update, blocks), list(grads), strict=True)):
        if name == pull.block:
            grads[position] = grad + pull.strength * (value - to[key])


def _copy(blocks: Blocks, new: dict[str, Params]) -> None:
    for name, block in new.items():
        for key, value in block.items():
            blocks[name][key].copy_(value)
