"""Whether runs are alike enough to be lanes of one, and what differs if they are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from fedblocks.core.method import Method
from fedblocks.core.phases import Phase, Update
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
    blocks = [block for method in first.methods.values() for block in method.blocks().values()]
    if others and any(getattr(block, "on_request", False) for block in blocks):
        return "clients ask the server for modules in the middle of a round"
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
    free = one.in_steps_only if one.lr_used_in_hooks else ("lr", *one.in_steps_only)
    for name in differing:
        if name == "lr" and name not in free:
            return f"{type(one).__name__} uses its learning rate in other places than its steps"
        if name not in free:
            return f"{name} differs, and only seeds and {', '.join(free)} may"
    if differing and _courses(one) != _courses(other):
        return "their local training differs in more than rates"
    return "their nets have other shapes" if _shapes(one) != _shapes(other) else None


def _frozen_differ(one: dict[str, str], other: dict[str, str]) -> str | None:
    """A stack holds frozen blocks once, for all of its clients."""
    names = ", ".join(f'"{n}"' for n in one if one[n] != other[n])
    return f"their frozen blocks differ: {names}" if names else None


def _shapes(method: Method) -> list[Any]:
    return [(name, value.shape) for name, value in method.net.init(0).items()]


def _courses(method: Method) -> list[Any]:
    """Local training of every kind, less the numbers that each client may have its own of."""
    kinds = (method.phases(), method.adaptation(), method.joining())
    return [[_course(phase) for phase in phases] for phases in kinds]


def _course(phase: Phase) -> tuple[Any, ...]:
    updates = [_without_rates(update) for update in phase.updates]
    return phase.epochs, phase.on, phase.steps, updates


def _without_rates(update: Update) -> tuple[Any, ...]:
    pull = None if update.pull is None else replace(update.pull, strength=0.0)
    return update.train, update.optimizer, pull, update.repeat
