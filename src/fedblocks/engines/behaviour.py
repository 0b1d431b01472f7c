"""What a net and a method compute at the start, in a few numbers: equal where the code is."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from fedblocks.core import mode
from fedblocks.core.client import Step
from fedblocks.core.frozen_hash import content_hash
from fedblocks.core.local_round import PhaseRun, loss_of, step_key, train, trained_tensors
from fedblocks.core.method import Method
from fedblocks.core.net import Net
from fedblocks.core.outside_modules import seeded
from fedblocks.core.parts import Blocks, is_statistic
from fedblocks.core.precision import half_precision
from fedblocks.core.training_batch import batch_of
from fedblocks.data.federation import Federation
from fedblocks.engines.courses import courses_of, other_course
from fedblocks.engines.first_step import moves_of, other_move
from fedblocks.engines.round import Experiment
from fedblocks.engines.sequential import one_client

ROWS = 2  # examples whose outputs are written down
NUMBERS = 16  # of each view, at most
MOST = 50_000_000  # parameters of a net that a CPU tries in a few seconds
TOLERANCE = 1e-3  # of the largest number: machines and versions differ in last digits
# client, start, views: {name: [number]}, losses: {update: number}, courses, moves
Behaviour = dict[str, Any]


def behaviours_of(experiment: Experiment) -> dict[str, Behaviour]:
    """By group, how its first client with training rows would begin; groups whose code cannot be
    tried by itself are left out.
    """
    sizes = experiment.data.train.sizes
    has_rows = [i for i in range(experiment.data.clients) if sizes[i]]
    firsts = {group: ids[0] for group, ids in experiment.members(has_rows).items()}
    behaviours = {group: behaviour_of(experiment, group, i) for group, i in firsts.items()}
    return {group: one for group, one in behaviours.items() if one is not None}


def behaviour_of(experiment: Experiment, group: str, client: int) -> Behaviour | None:
    """Outputs of each view, the first loss of each update, what the phases say and how far the
    first step goes, on the CPU; nothing of it is kept.
    """
    if not len(experiment.data.train[client]) or _size(experiment.methods[group].net) > MOST:
        return None
    try:
        with seeded(0), half_precision(False), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the first round says them
            data = experiment.data.subset([client]).compact().to("cpu")
            return {"client": client, **_try(experiment.methods[group], data, experiment.seed)}
    except Exception:  # odd code, or one that needs other clients: the first round says so
        return None


def _size(net: Net) -> int:
    return net.size() + sum(value.numel() for value in net.base.values())


def _try(method: Method, data: Federation, seed: int) -> Behaviour:
    alone = Experiment({"all": method}, data, seed)
    state = alone.start()
    job = alone.training_job("all", [0], state)
    local, sent, steps = one_client(job, 0)
    more = job.requested(local.call(method.wants, sent), local)
    start = local.call(method.prepare, {**sent, **more})
    losses: dict[str, float] = {}

    def write_down(stretch: PhaseRun, order: Sequence[Step]) -> None:
        for step in order:
            for place, update in enumerate(stretch.phase.updates):
                if update.loss is not None:
                    name = f"{stretch.number + 1}.{place + 1}"
                    losses[name] = _loss(place, stretch, step)

    train(job.phases, start, local, [order[:1] for order in steps], write_down)
    hashes = [content_hash(block) for _, block in sorted(sent.items())]
    views = _outputs(method, data, local.whole(start))
    behaviour = {"start": hashes, "views": views, "losses": losses, "courses": courses_of(method)}
    with suppress(Exception):  # a method that counts with its zeros, perhaps
        behaviour["hidden"] = _outputs(method, data, _without_zeros(local.whole(start)))
    with suppress(Exception):  # a server that needs other clients, perhaps
        behaviour["moves"] = moves_of(job, state)
    return behaviour


def _outputs(method: Method, data: Federation, blocks: Blocks) -> dict[str, list[float]]:
    x = data.inputs(data.train[0][:ROWS])
    with torch.no_grad(), mode.mode(training=False, mapped=False, task=data.task):
        outputs = {name: view(blocks, x) for name, view in method.views().items()}
    return {name: _spread(values.double().flatten()) for name, values in outputs.items()}


def _without_zeros(blocks: Blocks) -> Blocks:
    """Blocks with small numbers in the place of tensors that start at zero: what such a tensor is
    multiplied with is in no output before it has learned.
    """
    return {
        name: {key: _filled(key, value) for key, value in block.items()}
        for name, block in blocks.items()
    }


def _filled(name: str, value: Tensor) -> Tensor:
    if not value.is_floating_point() or is_statistic(name) or bool(value.any()):
        return value
    return torch.arange(value.numel(), device=value.device).to(value).cos().view_as(value) / 8


def _spread(values: Tensor) -> list[float]:
    """Some of many numbers, from the first to the last."""
    places = torch.linspace(0, len(values) - 1, min(NUMBERS, len(values))).long()
    numbers: list[float] = values[places].tolist()
    return numbers


def _loss(place: int, stretch: PhaseRun, step: Step) -> float:
    """The loss of an update on a batch; what it trains has gradients, as in a step."""
    batch = batch_of(stretch.local, step, step_key(stretch, 1))
    live = dict(stretch.blocks)
    for name, key, value in trained_tensors(stretch.phase.updates[place], stretch.blocks):
        live[name] = {**live[name], key: value.detach().requires_grad_()}
    loss, _ = loss_of(place, stretch, step)(live, batch, stretch.local.tensors)
    return float(loss)


def difference(before: Behaviour, now: Behaviour, net: Net, client: str) -> str:
    """What differs, as the end of a sentence; empty: nothing, or nothing that can be compared.
    Records of earlier versions have fewer parts.
    """
    if course := other_course(before.get("courses", {}), now["courses"]):
        return course
    if before["start"] != now["start"] and _keeps_weights(net):
        return ""  # a module's own weights may be others now: those of the run are stored
    for what, kind in (("views", "output"), ("losses", "loss"), ("hidden", "output")):
        if what not in before or what not in now:
            continue
        if not _are_close(_flat(before[what]), _flat(now[what])):
            after = " once what is zero has learned" if what == "hidden" else ""
            return f'from the same start it gives another {kind} for client "{client}"{after}'
    if (
        "moves" in before
        and "moves" in now
        and (stage := other_move(before["moves"], now["moves"]))
    ):
        stages = f'its first step moves blocks otherwise (`{stage}`) for client "{client}"'
        return f"from the same start {stages}"
    return ""


def _keeps_weights(net: Net) -> bool:
    """Whether the start is the same for all seeds."""
    one, other = net.init(0), net.init(1)
    return all(torch.equal(one[name], other[name]) for name in one)


def _flat(numbers: Mapping[str, Any]) -> dict[str, float]:
    return {
        f"{name}/{place}": value
        for name, values in numbers.items()
        for place, value in enumerate(values if isinstance(values, list) else [values])
    }


def _are_close(before: Mapping[str, float], now: Mapping[str, float]) -> bool:
    if before.keys() != now.keys():
        return False
    finite = [abs(v) for v in before.values() if math.isfinite(v)]
    near = TOLERANCE * max(finite, default=0.0)
    return all(_is_close(value, now[name], near) for name, value in before.items())


def _is_close(one: float, other: float, near: float) -> bool:
    if math.isfinite(one) and math.isfinite(other):
        return abs(one - other) <= near
    return one == other or (math.isnan(one) and math.isnan(other))
