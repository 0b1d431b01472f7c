"""After two rounds: blocks that should have learned something, and are as they were. After one, a
method that compares what a client had with what it is sent may have seen no difference yet.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from fedblocks.core.blocks import Federated, Private
from fedblocks.core.hooks import is_own
from fedblocks.core.method import Method
from fedblocks.core.parts import Params, is_statistic
from fedblocks.core.schedules import at
from fedblocks.core.server import own_server
from fedblocks.core.state import State
from fedblocks.core.trees import take
from fedblocks.engines.close_round import Report
from fedblocks.engines.job import Job
from fedblocks.engines.round import Experiment
from fedblocks.runs.storage.record import Note

_ROUNDS = 2
_LOOKED_AT = 8  # clients whose private blocks are compared


def notes_of_idle_blocks(experiment: Experiment, state: State, report: Report) -> list[Note]:
    """After the second round, a warning for each block that nobody has moved, though it trains."""
    if state.round != _ROUNDS or report.refusals:
        return []
    start = experiment.start()
    notes = []
    for group, ids in experiment.members(report.clients).items():
        method = experiment.methods[group]
        job = experiment.training_job(group, ids[:_LOOKED_AT], start)
        everybody = len(report.clients) == experiment.data.clients
        for name in _idle_blocks(method, job, start, state, everybody):
            text = (
                f'{type(method).__name__}: block "{name}" is after {_ROUNDS} rounds as it '
                f"was at the start: {_why(job, name)}"
            )
            notes.append(Note(text, "warning"))
    return notes


def _idle_blocks(
    method: Method, job: Job, before: State, after: State, everybody: bool
) -> Iterator[str]:
    """`everybody` took part in all rounds, and so has taken as many steps at least."""
    layout = method.blocks()
    old, new = own_server(layout, before.server), own_server(layout, after.server)
    trained = {name for name in layout if _steps(job, name)}
    for name, block in layout.items():
        if max(_steps(job, name), default=0) == 1 and not everybody:
            continue  # a first step may leave what stands before a factor that is still 0
        counts = name in trained or is_own(method)
        if isinstance(block, Federated) and counts and block.of is None:
            is_idle = name in old and _is_same(old[name], new[name])
        elif isinstance(block, Private) and counts:
            is_idle = _is_kept(job, name, after)
        else:
            continue
        if is_idle:
            yield name


def _steps(job: Job, name: str) -> list[int]:
    """The most steps of a client in each phase that trains a block, if its rate is not 0."""
    return [
        max((len(own[number]) for own in job.batches), default=0)
        for number, phase in enumerate(job.phases)
        if any(at(u.lr, job.cohort.round) for u in phase.updates if name in u.train)
    ]


def _is_kept(job: Job, name: str, after: State) -> bool:
    """Whether every client that is looked at keeps what it started from."""
    start = job.sent.blocks.get(name, {})
    known = [place for place, client in enumerate(job.ids) if client in after.private]
    pairs = [(take(start, place), after.private[job.ids[place]].get(name)) for place in known]
    return bool(pairs) and all(own is not None and _is_same(one, own) for one, own in pairs)


def _is_same(one: Params, other: Params) -> bool:
    names = [name for name in one if not is_statistic(name) and one[name].numel()]
    return bool(names) and all(torch.equal(one[n], other[n].to(one[n].device)) for n in names)


def _why(job: Job, name: str) -> str:
    steps = _steps(job, name)
    if not steps:
        return "no phase trains it"
    if not any(steps):
        return "its phases have no steps (epochs = 0)"
    undone = "a finish that undoes it"
    if isinstance(job.method.blocks()[name], Federated):
        undone += ", or a writes that gives no weight to the slots that are trained"
    return f"look for detach() or torch.no_grad() in the net or the loss, {undone}"
