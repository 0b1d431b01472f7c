"""How far one client's first step moves its blocks, and then the server's: lengths in which other
code shows, and other machines do not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedblocks.core.aggregate import reduce_groups
from fedblocks.core.local_round import step_by_step, train
from fedblocks.core.parts import Blocks, Params
from fedblocks.core.server import own_server
from fedblocks.core.state import State
from fedblocks.core.trees import copy, map_leaves
from fedblocks.core.uploads import uploads_of
from fedblocks.engines.batching import steps_of_one
from fedblocks.engines.job import Job
from fedblocks.engines.sequential import one_client

ROWS = 8  # of the first batch
NEAR = 0.05  # of the longest way
NEAR_WEIGHTS = 1e-6  # of the largest weight: what single precision leaves of a small way
SHORT = 1e-4  # of the largest weight
TINY = 1e-30  # where all weights are 0
Lengths = dict[str, float]  # what was moved, or sent -> how far, or with what weight
Moves = dict[str, Any]  # weights: the longest block; lengths: {stage: Lengths}


def moves_of(job: Job, state: State) -> Moves:
    """Of the only client of a job: what its first steps move, what `finish` leaves of it, with
    what weights that is sent, and what the server makes of it.
    """
    method = job.method
    local, sent, _ = one_client(job, 0)
    wanted = local.call(method.wants, sent)
    start = local.call(method.prepare, {**sent, **job.requested(wanted, local)})
    orders = [
        steps_of_one([rows[:ROWS] for rows in phase[:1]], job.device) for phase in job.batches[0]
    ]
    trained = train(job.phases, start, local, orders, step_by_step)
    end = local.call(method.finish, trained, start)
    weights = local.call(method.writes, end)
    before, after = _concluded(job, state, end, weights, wanted)
    largest = max((_length(block) for block in start.values()), default=0.0)
    kept = {name: end[name] for name in sorted(job.kept_blocks & end.keys() & start.keys())}
    lengths = {
        "phases": _ways(trained, start, trained, largest),
        "finish": _ways(kept, start, trained, largest),
        "writes": {name: float(value.double().norm()) for name, value in weights.items()},
        "conclude": _ways(after, before, trained, largest),
    }
    return {"weights": largest, "lengths": lengths}


def _concluded(
    job: Job, state: State, end: Blocks, weights: Any, wanted: Any
) -> tuple[Blocks, Blocks]:
    """The server's blocks before and after the round of the only client."""
    layout = job.method.blocks()
    alone = lambda value: value.detach()[None]
    own, weights, wanted = (map_leaves(alone, tree) for tree in (end, weights, wanted))
    uploads = uploads_of(job.method, own, weights, job.sent.reads, wanted, job.cohort)
    before = own_server(layout, state.server)
    server = own_server(layout, reduce_groups(state, {"all": uploads}).server)
    after = job.method.conclude(copy(server), before, uploads, job.cohort)
    return before, {name: after.get(name, server[name]) for name in before}


def _ways(after: Blocks, before: Blocks, trained: Blocks, largest: float) -> Lengths:
    """How far each block came, and how far in the direction in which training moved it."""
    ways: Lengths = {}
    for name in after.keys() & before.keys():
        way = _way(after[name], before[name])
        ways[name] = _length(way)
        own = _way(trained[name], before[name]) if name in trained else {}
        if own and way.keys() == own.keys():
            # a way that is as short as rounding has no direction
            ways[f"{name}, along"] = _product(way, own) / (_length(own) + SHORT * largest + TINY)
    return ways


def _way(after: Params, before: Params) -> Params:
    """Of tensors that can be told from each other; slots stand before all else."""
    pairs = {k: (v, before[k]) for k, v in after.items() if k in before and v.is_floating_point()}
    return {k: (one.double() - other).detach() for k, (one, other) in pairs.items()}


def _product(one: Params, other: Params) -> float:
    return sum(float((one[key] * other[key]).sum()) for key in one)


@torch.no_grad()
def _length(block: Mapping[str, Tensor]) -> float:
    squares = [float(v.double().square().sum()) for v in block.values()]
    return math.sqrt(sum(squares))


def other_move(before: Moves, now: Moves) -> str:
    """The first stage that moves something otherwise; empty: none."""
    stages: dict[str, Lengths] = before["lengths"]
    for stage, own in stages.items():
        other = now["lengths"].get(stage, {})
        finite = [abs(value) for value in own.values() if math.isfinite(value)]
        near = NEAR * max(finite, default=0.0) + NEAR_WEIGHTS * before["weights"]
        if own.keys() != other.keys() or not all(
            abs(value - other[name]) <= near or not math.isfinite(value)
            for name, value in own.items()
        ):
            return stage
    return ""
