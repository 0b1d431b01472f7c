"""Checks 7 and 18: each phase moves the blocks that it names, and the plan is the one
that was reviewed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from difflib import unified_diff

import torch
from torch import Tensor

from fedblocks.core.method import Method
from fedblocks.core.parts import Blocks
from fedblocks.core.phases import Phase
from fedblocks.core.plan import plan
from fedblocks.core.state import State
from fedblocks.engines.job import Job
from fedblocks.engines.round import Engine, Experiment
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.testing.example import Example
from fedblocks.testing.problems import LearningProblem, problems
from fedblocks.testing.usual import full_run


def named_blocks_move(example: Example) -> list[LearningProblem]:
    """Every tensor of every named block moves in each phase of each client with data,
    and no other does.
    """
    failures: list[LearningProblem] = []
    experiment = example.experiment()
    states = [experiment.start(), full_run(example, Vectorised()).states[1]]
    with_data = [c for c in example.everybody if len(experiment.data.train[c])]
    for group, members in experiment.members(with_data).items():
        ways: list[tuple[Engine, list[int]]] = [(Vectorised(), members)]
        # one by one: their data are not padded alike
        ways += [(Sequential(), [client]) for client in members[:2]]
        for engine, clients in ways:
            for purpose, phases in _stretches(experiment.methods[group]):
                for state in states:
                    moved = _moves(
                        _Place(experiment, state, engine, group, clients, purpose), phases
                    )
                    where = f"{purpose}, round {state.round}, {engine.name}"
                    failures += [
                        LearningProblem(f"{text} ({where})", block) for block, text in moved
                    ]
    return failures


def _stretches(method: Method) -> list[tuple[str, list[Phase]]]:
    return [("train", method.phases()), ("adapt", method.adaptation()), ("join", method.joining())]


@dataclass(frozen=True, eq=False)
class _Place:
    """Who trains, where, and what for."""

    experiment: Experiment
    state: State
    engine: Engine
    group: str
    clients: list[int]
    purpose: str

    def after(self, phases: Sequence[Phase]) -> Blocks:
        """Everything that the clients hold after some phases, before they finish:
        [clients, ...].
        """
        who = (self.group, self.clients, self.state)
        job = self.experiment.job(*who, list(phases), self.purpose != "adapt", self.purpose)
        method = copy.copy(job.method)
        object.__setattr__(method, "finish", lambda blocks, start, client: blocks)
        own = {f.name: getattr(job, f.name) for f in fields(Job)}
        blocks = self.engine.train(_OpenJob(**{**own, "method": method})).blocks
        return {name: block for name, block in blocks.items() if name in method.blocks()}


class _OpenJob(Job):
    """A job after which every block can be looked at."""

    @property
    def kept_blocks(self) -> set[str]:
        return set(self.method.blocks())


def _moves(place: _Place, phases: Sequence[Phase]) -> Iterator[tuple[str, str]]:
    """What each phase moved that it did not name, and what it named and did not move."""
    for number, phase in enumerate(phases, 1):
        # what `begin` does is no movement of the phase
        not_yet = [*phases[: number - 1], replace(phase, steps=0)]
        before = place.after(not_yet)
        after = place.after(phases[:number])
        for name, block in after.items():
            for key, value in block.items():
                for row, client in enumerate(place.clients):
                    reason = _wrong_move(value[row], before[name][key][row], name in phase.train)
                    if reason:
                        where = f'phase {number}, client {client}, block "{name}", tensor "{key}"'
                        yield name, f"{where}: {reason}"


def _wrong_move(now: Tensor, then: Tensor, named: bool) -> str:
    moved = not torch.equal(now, then)
    if moved and not named:
        return f"moved by {(now - then).abs().max().item():.2g}, and the phase does not name it"
    return "did not move, and the phase names it" if named and not moved else ""


def reviewed_plan(example: Example) -> list[LearningProblem]:
    """The plan, printed from the code, is the text that somebody has read and compared
    with the paper.
    """
    text = plan_text(example)
    if plan_text(example) != text:
        return [LearningProblem("the plan is printed differently the second time")]
    if example.plan is None:
        missing = "no reviewed plan is given; read this one and give it as `plan`"
        return [LearningProblem(f"{missing}:\n{text}")]
    reviewed, now = example.plan.splitlines(), text.splitlines()
    lines = unified_diff(reviewed, now, "reviewed", "now", lineterm="", n=0)
    changes = "\n".join(lines)
    return problems([f"the plan is not the reviewed one:\n{changes}"] if changes else [])


def plan_text(example: Example) -> str:
    """The plan of every group's method."""
    methods = example.methods()
    if len(methods) == 1:
        return plan(next(iter(methods.values()))).text()
    return "\n".join(f"group {group}\n{plan(method).text()}" for group, method in methods.items())
