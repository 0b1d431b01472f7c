"""Whether runs are alike enough to be lanes of one, and what differs if they are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch

from fedblocks.core.method import Method
from fedblocks.core.numbers import structure_of
from fedblocks.core.optimizers import Optimizer
from fedblocks.core.phases import Phase, Update
from fedblocks.engines.lanes.numbers import is_number, kept_beside, number_options, read_once
from fedblocks.engines.round import Experiment


def why_not(experiments: Sequence[Experiment]) -> str | None:
    """What keeps runs from being lanes of one, or nothing; one alone can always be."""
    first, *others = experiments
    for other in others:
        reason = _differ(first, other)
        if reason:
            return reason
    unfit = next((m.net.unmappable[0] for m in first.methods.values() if m.net.unmappable), None)
    if others and unfit:
        return f'layer "{unfit}" of the net cannot be mapped over clients'
    return None


def _differ(first: Experiment, other: Experiment) -> str | None:
    if first.methods.keys() != other.methods.keys():
        return "they have other groups of clients"
    for group, method in first.methods.items():
        reason = _methods_differ(method, other.methods[group])
        if reason:
            return reason
    reason = _frozen_differ(first.frozen.hashes, other.frozen.hashes)
    if reason:
        return reason
    one, two = first.data, other.data
    if one.streamed or two.streamed:
        return "their inputs are read from a file as needed"
    if one.x.shape[1:] != two.x.shape[1:] or one.tags.keys() != two.tags.keys():
        return "their data have other shapes or tags"
    if one.about.get("vocabulary") != two.about.get("vocabulary"):
        return "their texts have other vocabularies"
    return None


def _methods_differ(one: Method, other: Method) -> str | None:
    if type(one) is not type(other):
        return "they have other methods"
    names = [field.name for field in fields(one) if field.name != "net"]
    differing = [name for name in names if getattr(one, name) != getattr(other, name)]
    reasons = [_why_fixed(name, one, other) for name in differing]
    if any(reasons):
        return next(reason for reason in reasons if reason)
    if differing and _courses(one) != _courses(other):
        return "their local training differs in more than numbers"
    if differing and one.blocks().keys() != other.blocks().keys():
        return "they have other blocks"
    return "their nets have other shapes" if _shapes(one) != _shapes(other) else None


def _frozen_differ(one: dict[str, str], other: dict[str, str]) -> str | None:
    """A stack holds frozen blocks once, for all of its clients."""
    names = ", ".join(f'"{n}"' for n in one if one[n] != other[n])
    return f"their frozen blocks differ: {names}" if names else None


def _why_fixed(name: str, one: Method, other: Method) -> str | None:
    """Why an option that differs cannot be a number of each lane; nothing if it can."""
    values = getattr(one, name), getattr(other, name)
    if name == "optimizer":
        return _why_unlike(*values)
    if name not in number_options(type(one)) or not all(map(is_number, values)):
        return f"{name} differs, and is not a number in both"
    beside = kept_beside(one)
    if beside:
        return f"{name} differs, and {type(one).__name__} keeps {beside[0]} beside its options"
    cached = read_once(one).get(name)
    if cached:
        return f"{name} differs, and {cached[0]} of {type(one).__name__} is made from it once"
    return None


def _why_unlike(one: Optimizer, other: Optimizer) -> str | None:
    if _structure(one) != _structure(other):
        return "their optimizers differ in more than numbers"
    if one != other and not getattr(one, "has_client_numbers", False):
        return f"{type(one).__name__} has its numbers for all clients alike"
    return None


def _structure(optimizer: Optimizer) -> Any:
    """All but its numbers, and what it remembers: without momentum there is no velocity."""
    if not is_dataclass(optimizer):
        return optimizer
    return structure_of(optimizer), sorted(optimizer.memory([torch.zeros(1)]))


def _shapes(method: Method) -> list[Any]:
    return [(name, value.shape) for name, value in method.net.init(0).items()]


def _courses(method: Method) -> list[Any]:
    """Local training of every kind, less the numbers that each client may have its own of."""
    kinds = (method.phases(), method.adaptation(), method.joining())
    return [[_course(phase) for phase in phases] for phases in kinds]


def _course(phase: Phase) -> tuple[Any, ...]:
    updates = [_without_numbers(update) for update in phase.updates]
    return phase.epochs, phase.on, phase.steps, updates


def _without_numbers(update: Update) -> tuple[Any, ...]:
    pull = None if update.pull is None else replace(update.pull, strength=0.0)
    may_rest = update.rests is not None
    return update.train, _structure(update.optimizer), pull, update.repeat, may_rest
