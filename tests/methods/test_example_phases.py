"""Every step that a method takes, in words: what trains on which data, with
which loss, rate, optimizer, pull and projection. Noted in example_phases.txt, to be read.

After a change on purpose, delete that file, run this twice, and read what has changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fedblocks.core.errors import UserError
from fedblocks.core.method import Method
from fedblocks.core.optimizers import SGD
from fedblocks.core.own_code import own_name
from fedblocks.core.phases import Phase, Update
from fedblocks.testing import EXAMPLES
from fedblocks.testing.adapters import ADAPTERS

NOTED = Path(__file__).parent / "example_phases.txt"
EVERY = {**EXAMPLES, **ADAPTERS}


def called(function: Any) -> str:
    return "-" if function is None else own_name(function).rpartition(".")[2]


def of_update(update: Update) -> str:
    pull = "-"
    if update.pull is not None:
        live = "as it is" if update.pull.live else "as it began"
        pull = f"{update.pull.block} to {update.pull.to} {live} by {update.pull.strength}"
    words = {
        "trains": " + ".join(update.train), "loss": called(update.loss), "lr": update.lr,
        "optimizer": update.optimizer, "pull": pull, "repeat": update.repeat,
        "project": called(update.project), "clip": update.clip_norm,
    }  # fmt: skip
    return ", ".join(f"{name} {value}" for name, value in words.items())


def of_phases(what: str, phases: Sequence[Phase]) -> Iterator[str]:
    for number, phase in enumerate(phases, 1):
        length = f"{phase.epochs} epochs, {phase.steps} steps"
        yield f"  {what} {number} on {phase.on}: {length}, begin {called(phase.begin)}"
        yield from (f"    {of_update(update)}" for update in phase.updates)


def method_of(name: str) -> Method:
    """With options that are nobody's default, so that each is seen where it goes."""
    example = EVERY[name]()
    own = {"epochs": 7, "lr": 0.37, "clip_norm": 2.5}
    try:
        methods = example.methods(**own, optimizer=SGD(momentum=0.25))
    except UserError:  # SCAFFOLD takes plain SGD alone
        methods = example.methods(**own)
    return next(iter(methods.values()))


def lines_of(name: str) -> Iterator[str]:
    method = method_of(name)
    yield f"{name}: views {', '.join(method.views())}; needs {method.needs}; tags {method.tags}"
    yield from of_phases("train", method.phases())
    yield from of_phases("adapt", method.adaptation())
    yield from of_phases("join", method.joining())


@cache
def noted() -> dict[str, list[str]]:
    """By method."""
    every: dict[str, list[str]] = {}
    name = ""
    for line in NOTED.read_text().splitlines():
        name = name if line.startswith(" ") else line.partition(":")[0]
        every.setdefault(name, []).append(line)
    return every


@pytest.mark.parametrize("name", EVERY)
def test_the_steps_of_a_method_are_as_noted(name: str) -> None:
    if not NOTED.exists():
        NOTED.write_text("".join(f"{line}\n" for one in EVERY for line in lines_of(one)))
        pytest.fail("example_phases.txt was written: read what has changed")
    assert list(lines_of(name)) == noted()[name]
