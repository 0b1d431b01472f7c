"""What one client does in one round. Engines differ only in how they map this over clients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedblocks.core import mode
from fedblocks.core.client import ClientStack, Mapped, Step, first
from fedblocks.core.clipping import clip_gradients
from fedblocks.core.decay import TensorName, exempt_names, with_groups
from fedblocks.core.hooks import is_number, noting, refuse_loss
from fedblocks.core.kept_memory import memory_of, packed
from fedblocks.core.method import Method
from fedblocks.core.numbers import with_numbers
from fedblocks.core.optimizers import Count, Memory, Rate, each_client, of_some
from fedblocks.core.parts import OPTIMIZER, Blocks, Params, is_statistic
from fedblocks.core.phase_functions import begin_of, projection_of
from fedblocks.core.phases import Batch, Phase, Pull, Update, refuse_without_gradient
from fedblocks.core.random import fold
from fedblocks.core.resting import (
    Rest,
    knowing_rest,
    moments_at,
    moved_statistics,
    resting_in,
    without_resting,
)
from fedblocks.core.schedules import at
from fedblocks.core.step_counts import lacked_in, turns
from fedblocks.core.training_batch import batch_of

Orders = Sequence[Sequence[Step]]  # the steps of each phase


@dataclass(frozen=True, eq=False)
class PhaseRun:
    """One phase at work, on working copies that its steps write to."""

    phase: Phase
    number: int  # of the phase in the round
    blocks: Blocks  # the trained ones are copies of our own
    start: Blocks  # as they were when training began
    local: ClientStack
    memories: list[Memory]  # of the optimizers, one for each update
    rates: list[Rate]  # as `rates_of` says
    exempt: list[set[TensorName]]  # from weight decay, for each update
    lacked: list[set[int]]  # places of tensors that were ever without a gradient, for each update


StepRunner = Callable[[PhaseRun, Sequence[Step]], None]  # a stretch and its steps


def local_round(
    method: Method,
    phases: Sequence[Phase],
    blocks: Blocks,
    local: ClientStack,
    orders: Orders,
    runner: StepRunner,
) -> tuple[Blocks, dict[str, Tensor]]:
    """What one client (or a stack of them) does in one round: its blocks afterwards,
    and its weights.
    """
    start = local.call(method.prepare, blocks)
    blocks = local.call(method.finish, train(phases, start, local, orders, runner), start)
    return blocks, local.call(method.writes, blocks)


def train(
    phases: Sequence[Phase], start: Blocks, local: ClientStack, orders: Orders, runner: StepRunner
) -> Blocks:
    """Run the phases on working copies of the blocks that they move."""
    blocks = start
    for number, (phase, order) in enumerate(zip(phases, orders, strict=True)):
        if phase.begin is not None:
            begun = local.each(begin_of(phase, number, local))(local.tensors, blocks)
            blocks = {**blocks, **{name: begun[name] for name in phase.train}}
        blocks = {
            n: {k: v.clone() for k, v in b.items()} if n in phase.train else b
            for n, b in blocks.items()
        }
        own = knowing_rest(phase, number, blocks, local)
        names = [f"{OPTIMIZER}{number}/{turn}" for turn in range(len(phase.updates))]
        moved = [trained_tensors(update, blocks) for update in phase.updates]
        memories = [
            memory_of(update, trained, place, blocks.get(name), own)
            for place, (update, trained, name) in enumerate(zip(phase.updates, moved, names))
        ]
        lacked = [lacked_in(*each) for each in zip(memories, phase.updates, moved, strict=True)]
        usual = enumerate(rates_of(phase, local.round))
        rates: list[Rate] = [local.rates.get((number, place), rate) for place, rate in usual]
        exempt = [exempt_names(update, local.method, blocks) for update in phase.updates]
        runner(PhaseRun(phase, number, blocks, start, own, memories, rates, exempt, lacked), order)
        if local.keep_optimizer:
            blocks |= {name: packed(memory) for name, memory in zip(names, memories, strict=True)}
    return blocks


def rates_of(phase: Phase, round: Any) -> list[Rate]:
    """Of a phase's updates: learning rates, strengths of pulls (0: none), largest norms (inf)."""
    pulls = [0.0 if update.pull is None else update.pull.strength for update in phase.updates]
    norms = [math.inf if u.clip_norm is None else u.clip_norm for u in phase.updates]
    return [*(at(update.lr, round) for update in phase.updates), *pulls, *norms]


def optimizer_place(number: int, place: int) -> str:
    """What the optimizer of an update is called among a stack's tensors."""
    return f"{number}/{place}"


def step_by_step(stretch: PhaseRun, order: Sequence[Step]) -> None:
    """The plain way to run a phase: one step after another."""
    if not order:
        return
    key = stretch.local.tensors["key"]
    counts = torch.arange(1, len(order) + 1, device=key.device).view(-1, *[1] * key.dim())
    # [steps] or [steps, clients]: at once, for they cost as much as a small layer
    keys = step_key(stretch, counts)
    for count, (step, key) in enumerate(zip(order, keys.unbind(), strict=True), 1):
        part = active_part(stretch, step.active)
        run_step(part, step, count, key if step.active is None else key[: step.active])


def active_part(stretch: PhaseRun, active: int | None) -> PhaseRun:
    """The clients of a stack that still have batches, as views."""
    if active is None:
        return stretch
    memories = [
        {k: [v[:active] for v in values] for k, values in memory.items()}
        for memory in stretch.memories
    ]
    blocks, start = first(stretch.blocks, active), first(stretch.start, active)
    rates = [r[:active] if isinstance(r, Tensor) and r.dim() else r for r in stretch.rates]
    local = stretch.local.first(active)
    return replace(stretch, blocks=blocks, start=start, local=local, memories=memories, rates=rates)


def step_key(stretch: PhaseRun, count: Count) -> Tensor:
    """The source of noise in a step."""
    return fold(fold(stretch.local.tensors["key"], stretch.number), count)


def run_step(stretch: PhaseRun, step: Step, count: Count, key: Tensor) -> None:
    """One batch: every update of the phase in turn. Steps count from 1; a captured
    graph counts with a tensor.
    """
    batch = batch_of(stretch.local, step, key)
    updates = stretch.phase.updates
    own = [stretch.rates[place :: len(updates)] for place in range(len(updates))]
    turns = zip(updates, stretch.memories, own, strict=True)
    for place, (update, memory, (rate, pull, norm)) in enumerate(turns):
        for turn in range(update.repeat):
            grads = _gradients(place, stretch, batch, step)
            if update.pull is not None:
                _add_pull(update.pull, pull, update, stretch, grads)
            trained = trained_tensors(update, stretch.blocks)
            grads = without_resting(trained, grads, resting_in(place, stretch.local))
            if update.clip_norm is not None:
                grads = clip_gradients(grads, norm, stretch.local.mapped)
            _move(place, stretch, grads, memory, rate, (count - 1) * update.repeat + turn + 1)


def _move(
    place: int,
    stretch: PhaseRun,
    grads: list[Tensor | None],
    memory: Memory,
    rate: Rate,
    count: Count,
) -> None:
    """One step of the optimizer, in place on the working copies of what has a gradient."""
    blocks, update, local = stretch.blocks, stretch.phase.updates[place], stretch.local
    numbers = local.tensors["optimizers"].get(optimizer_place(stretch.number, place), {})
    optimizer = with_numbers(update.optimizer, numbers) if numbers else update.optimizer
    trained = trained_tensors(update, blocks)
    params = [p for _, _, p in trained]
    if exempt := stretch.exempt[place]:
        ids = frozenset(id(p) for name, key, p in trained if (name, key) in exempt)
        optimizer = with_groups(optimizer, ids)
    with torch.no_grad():
        rest = Rest(update, trained, memory, resting_in(place, local))
        for places, steps in turns(update, trained, grads, memory, stretch.lacked[place], count):
            moved: list[Any] = [grads[i] for i in places]
            own = moments_at(memory, places, len(params))
            part = of_some(optimizer, places) if len(places) < len(params) else optimizer
            part.step([params[i] for i in places], moved, own, rate, steps)
        if update.project is not None:
            project = local.each(projection_of(update.project, stretch.number, place, local))
            projected = project(local.tensors, {name: blocks[name] for name in update.train})
            _copy(blocks, {name: projected[name] for name in update.train})
        rest.put_back()


def _gradients(
    place: int, stretch: PhaseRun, batch: dict[str, Tensor], step: Step
) -> list[Tensor | None]:
    """The gradient of the loss for everything that the update names, before any pull."""
    update = stretch.phase.updates[place]
    if update.loss is None:
        return [None for _ in trained_tensors(update, stretch.blocks)]
    grads = loss_gradients(place, stretch, batch, step)
    return [g.to_dense() if g is not None and g.is_sparse else g for g in grads]


def loss_gradients(
    place: int, stretch: PhaseRun, batch: dict[str, Tensor], step: Step
) -> list[Tensor | None]:
    """The gradient of an update's loss for each tensor that it moves; None: it has none."""
    blocks, update = stretch.blocks, stretch.phase.updates[place]
    params = trained_tensors(update, blocks)
    live: Blocks = {name: dict(blocks[name]) for name in update.train}
    leaves = [p.detach().requires_grad_() for _, _, p in params]
    for (name, key, _), leaf in zip(params, leaves, strict=True):
        live[name][key] = leaf
    own_loss = stretch.local.each(loss_of(place, stretch, step))
    loss, statistics = own_loss({**blocks, **live}, batch, stretch.local.tensors)
    if not loss.requires_grad:
        refuse_without_gradient(update)
    grads = torch.autograd.grad(loss.sum() if loss.dim() else loss, leaves, allow_unused=True)
    _copy(blocks, moved_statistics(statistics, blocks, resting_in(place, stretch.local)))
    return list(grads)


def loss_of(place: int, stretch: PhaseRun, step: Step) -> Mapped:
    """The loss and the statistics that the forward pass left behind, as a function of
    one client.
    """
    update, local = stretch.phase.updates[place], stretch.local
    find = lambda method: local.own_update(stretch.number, place, method).loss

    def loss(
        blocks: Blocks, batch: dict[str, Tensor], client: dict[str, Any]
    ) -> tuple[Tensor, Blocks]:
        blocks = {
            n: {k: v.clone() if is_statistic(k) else v for k, v in b.items()}
            for n, b in blocks.items()
        }
        mask = None if step.full else batch["mask"]
        own = local.own(update.loss, client, find)  # type: ignore[arg-type]
        task = local.source.task
        with (
            noting(local.method, "loss"),
            mode.mode(training=True, mapped=local.mapped, mask=mask, key=batch["key"], task=task),
        ):
            value = own(local.whole(blocks), Batch(**batch, client=local.client(client)))
            if not is_number(value):
                refuse_loss(local.method, own, value)
        moved = {n: {k: v for k, v in blocks[n].items() if is_statistic(k)} for n in update.train}
        return value, {n: b for n, b in moved.items() if b}

    return loss


def trained_tensors(update: Update, blocks: Blocks) -> list[tuple[str, str, Tensor]]:
    """(block, name, tensor) of everything that a gradient moves."""
    return [(n, k, v) for n in update.train for k, v in blocks[n].items() if not is_statistic(k)]


def _add_pull(
    pull: Pull, strength: Rate, update: Update, stretch: PhaseRun, grads: list[Tensor | None]
) -> None:
    to = stretch.local.whole(stretch.blocks if pull.live else stretch.start)[pull.to]
    for position, (name, key, value) in enumerate(trained_tensors(update, stretch.blocks)):
        if name == pull.block:
            pulled = each_client(strength, value) * (value - to[key])
            gradient = grads[position]
            grads[position] = pulled if gradient is None else gradient + pulled


def _copy(blocks: Blocks, new: dict[str, Params]) -> None:
    for name, block in new.items():
        for key, value in block.items():
            blocks[name][key].copy_(value)
