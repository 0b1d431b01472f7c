"""What a method does in local training, as facts that can be written down and compared."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from typing import Any

from fedblocks.core.method import Method
from fedblocks.core.phases import Phase, Update
from fedblocks.core.schedules import Schedule, at
from fedblocks.engines.job import COURSES

Fact = float | str
Courses = dict[str, dict[str, Fact]]  # function of the method -> place in it -> what is there
ROUNDS = (0, 1, 5, 20, 100)  # whose learning rates are written down
NEAR = 1e-6  # of a number: schedules are computed anew


def courses_of(method: Method) -> Courses:
    """What the functions of a method that return phases say; one that fails is left out."""
    courses: Courses = {}
    for name in COURSES.values():
        with suppress(Exception):  # the first round says so
            courses[name] = dict(_facts(getattr(method, name)()))
    return courses


def other_course(before: Courses, now: Courses) -> str:
    """The first fact that differs; empty: none, or none that can be compared."""
    for name, own in before.items():
        other = now.get(name, own)
        for place in {**own, **other}:
            if not _is_same(own.get(place), other.get(place)):
                was, is_now = _shown(own.get(place)), _shown(other.get(place))
                return f"`{name}`, {place}: was {was}, and is {is_now}"
    return ""


def _facts(phases: Sequence[Phase]) -> Iterator[tuple[str, Fact]]:
    for number, phase in enumerate(phases, 1):
        place = f"phase {number}"
        yield f"{place}, epochs", float(phase.epochs)
        yield f"{place}, steps", "none" if phase.steps is None else float(phase.steps)
        yield f"{place}, on", phase.on
        yield f"{place}, begin", _is_there(phase.begin)
        for turn, update in enumerate(phase.updates, 1):
            for name, fact in _facts_of_update(update):
                yield f"{place}, step {turn}, {name}", fact


def _facts_of_update(update: Update) -> Iterator[tuple[str, Fact]]:
    yield "blocks", ", ".join(update.train)
    yield "loss", _is_there(update.loss)
    yield "repeat", float(update.repeat)
    yield "project", _is_there(update.project)
    yield "clip_norm", "none" if update.clip_norm is None else float(update.clip_norm)
    yield from _facts_of_rate(update.lr)
    yield "optimizer", type(update.optimizer).__name__
    yield from _plain_values(update.optimizer, "optimizer")
    yield "pull", _is_there(update.pull)
    yield from _plain_values(update.pull, "pull")


def _facts_of_rate(lr: float | Schedule) -> Iterator[tuple[str, Fact]]:
    """One that goes over the run's rounds is another one when a run gets more of them."""
    if not callable(lr):
        yield "lr", float(lr)
        return
    is_of_run = hasattr(lr, "over")
    for round in ROUNDS[: 1 if is_of_run else None]:
        yield f"lr in round {round + 1}", float(at(lr, round))
    if is_of_run:
        yield from ((name, v) for name, v in _plain_values(lr, "lr") if name != "lr.rounds")


def _plain_values(record: Any, place: str) -> Iterator[tuple[str, Fact]]:
    """Numbers and words in a record, by their paths."""
    if isinstance(record, tuple):
        entries = [(str(number), value) for number, value in enumerate(record)]
    elif is_dataclass(record):
        entries = [(field.name, getattr(record, field.name)) for field in fields(record)]
    else:
        entries = []
    for name, value in entries:
        if isinstance(value, bool | str):
            yield f"{place}.{name}", str(value)
        elif isinstance(value, int | float):
            yield f"{place}.{name}", float(value)
        else:
            yield from _plain_values(value, f"{place}.{name}")


def _is_there(value: object) -> str:
    return "no" if value is None else "yes"


def _is_same(one: Fact | None, other: Fact | None) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return one == other or math.isclose(one, other, rel_tol=NEAR)
    return one == other


def _shown(fact: Fact | None) -> str:
    if fact is None:
        return "not there"
    return f"{fact:g}" if isinstance(fact, float) else fact
