"""Several runs as one: seeds and rates are lanes, one more dimension of the stack that a device works on.

Lanes share a method (but for learning rates, strengths of pulls and what the server alone uses), nets of one shape and
the round; they differ in seeds, data, partition, cohort and state. Each lane ends as its run would have ended alone, up
to the last bits of sums.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedblocks.core.errors import UserError
from fedblocks.core.local_round import rates_of
from fedblocks.core.method import Method
from fedblocks.core.parts import Blocks
from fedblocks.core.phases import Update
from fedblocks.core.server import Download
from fedblocks.core.state import State
from fedblocks.data.federation import Federation, Rows
from fedblocks.engines.close_round import ClientResults, Report, concluded
from fedblocks.engines.job import Evaluated, Job, Origin, Rates, Trained
from fedblocks.engines.lanes.side_by_side import speculate_lanes
from fedblocks.engines.round import Evaluation, Experiment, by_client, evaluation_jobs
from fedblocks.engines.vectorised import Vectorised


@dataclass(frozen=True, eq=False)
class Lanes:
    """Runs that are done together, and their data as one federation."""

    settings: Sequence[Experiment]

    def __post_init__(self) -> None:
        reason = why_not(self.settings)
        if reason:
            raise UserError(f"these runs cannot be lanes of one: {reason}", "run them one after the other")

    @cached_property
    def data(self) -> Federation:
        """The clients of all lanes, one lane after the other."""
        return merged([setting.data for setting in self.settings])

    @cached_property
    def offsets(self) -> list[int]:
        """The number of each lane's first client in the merged federation."""
        counts = [setting.data.clients for setting in self.settings]
        return [sum(counts[:lane]) for lane in range(len(counts))]

    def run_round(
        self,
        states: Sequence[State],
        clients: Sequence[Sequence[int]],
        engine: Vectorised,
        score: str | None = None,
        coming: Sequence[Sequence[int]] = (),
    ) -> list[tuple[State, Report]]:
        """One round of every lane, each with its own cohort; `coming` are those of the next round, where known."""
        offers: list[dict[str, ClientResults]] = [{} for _ in states]
        for group in self.settings[0].methods:
            jobs = self._training_jobs(group, states, clients)
            if jobs:
                found = engine.train(joined(self, jobs), score)
                for (lane, job), trained in zip(jobs.items(), _apart(found, list(jobs.values())), strict=True):
                    offers[lane][group] = ClientResults.of(job, trained, self.settings[lane].share)
        methods = [setting.methods for setting in self.settings]
        hoped = speculate_lanes(methods, states, offers)  # queued before any wait
        for setting, state, ids in zip(self.settings, states, coming, strict=False):
            setting.foresee(ids, state.round + 1)
        return [concluded(*given) for given in zip(methods, states, offers, hoped, strict=True)]

    def evaluation(
        self, states: Sequence[State], clients: Sequence[Sequence[int]], engine: Vectorised, part: str, joining: bool
    ) -> list[Evaluation]:
        """What `evaluation` says of every lane."""
        found: list[Evaluation] = [({}, {}) for _ in states]
        lanes = [evaluation_jobs(*given, joining) for given in zip(self.settings, states, clients, strict=True)]
        for jobs in _by_group(lanes):
            evaluated = engine.evaluate(joined(self, jobs), part)
            for (lane, job), own in zip(jobs.items(), _evaluated_apart(evaluated, list(jobs.values())), strict=True):
                by_client(own, job.ids, *found[lane])
        return found

    def _training_jobs(self, group: str, states: Sequence[State], clients: Sequence[Sequence[int]]) -> dict[int, Job]:
        jobs: dict[int, Job] = {}
        for lane, (setting, state) in enumerate(zip(self.settings, states, strict=True)):
            ids = setting.members(clients[lane]).get(group)
            if ids:
                jobs[lane] = setting.job(group, ids, state, setting.methods[group].phases(), True, "train")
        return jobs


class JoinedJob(Job):
    """The jobs of several lanes as one: their clients side by side."""

    lanes: Lanes
    jobs: Mapping[int, Job]

    @cached_property
    def ids(self) -> list[int]:
        """Numbers in the merged federation."""
        return [self.lanes.offsets[lane] + i for lane, job in self.jobs.items() for i in job.ids]

    @cached_property
    def origins(self) -> list[Origin]:
        return [origin for job in self.jobs.values() for origin in job.origins]

    @cached_property
    def rates(self) -> Rates:
        """Learning rates and strengths of pulls where lanes differ: one for each client."""
        found: dict[tuple[int, int], Tensor] = {}
        for number in range(len(self.phases)):
            lanes = [rates_of(job.phases[number], job.cohort.round) for job in self.jobs.values()]
            for place, own in enumerate(zip(*lanes, strict=True)):
                if len(set(own)) > 1:
                    each = [rate for rate, job in zip(own, self.jobs.values(), strict=True) for _ in job.ids]
                    found[number, place] = torch.tensor(each, device=self.device, dtype=self.method.net.dtype)
        return found


def joined(lanes: Lanes, jobs: Mapping[int, Job]) -> Job:
    """One job for the clients of several lanes."""
    first = next(iter(jobs.values()))
    if len(jobs) == 1:
        return first
    cohorts = [job.cohort for job in jobs.values()]
    tags = {name: torch.cat([cohort.tags[name] for cohort in cohorts]) for name in cohorts[0].tags}
    cohort = replace(
        cohorts[0], ids=torch.cat([c.ids for c in cohorts]), sizes=torch.cat([c.sizes for c in cohorts]), tags=tags
    )
    whole = JoinedJob(
        first.method, first.phases, cohort, _sent(list(jobs.values())), first.bytes_per_slot, lanes.data, first.seed,
        first.training, first.purpose,
    )  # fmt: skip
    object.__setattr__(whole, "lanes", lanes)
    object.__setattr__(whole, "jobs", jobs)
    return whole


def _sent(jobs: Sequence[Job]) -> Download:
    first = jobs[0].sent
    blocks: Blocks = {
        name: {k: torch.cat([job.sent.blocks[name][k] for job in jobs]) for k in block}
        for name, block in first.blocks.items()
    }
    down = {name: torch.cat([job.sent.bytes_down[name] for job in jobs]) for name in first.bytes_down}
    return Download(blocks, {}, {}, down)


def _apart(found: Trained, jobs: Sequence[Job]) -> list[Trained]:
    """What the clients of each lane ended with."""
    parts = list(_stretches(jobs))
    return [
        Trained(
            {name: {k: v[part] for k, v in block.items()} for name, block in found.blocks.items()},
            _cut(found.weights, part), _cut(found.wanted, part), _cut(found.bytes_down, part), _cut(found.counts, part),
        )
        for part in parts
    ]  # fmt: skip


def _evaluated_apart(found: Evaluated, jobs: Sequence[Job]) -> list[Evaluated]:
    return [Evaluated(_cut(found.counts, part), _cut(found.portraits, part)) for part in _stretches(jobs)]


def _stretches(jobs: Sequence[Job]) -> Iterator[slice]:
    start = 0
    for job in jobs:
        yield slice(start, start + len(job.ids))
        start += len(job.ids)


def _cut(values: Mapping[str, Tensor], part: slice) -> dict[str, Tensor]:
    return {name: value[part] for name, value in values.items()}


def _by_group(lanes: Sequence[Iterator[Job]]) -> Iterator[dict[int, Job]]:
    """The jobs of all lanes that have the same method, group by group."""
    groups: dict[int, dict[int, Job]] = {}
    for lane, jobs in enumerate(lanes):
        for number, job in enumerate(jobs):
            groups.setdefault(number, {})[lane] = job
    yield from groups.values()


def merged(data: Sequence[Federation]) -> Federation:
    """Federations side by side: inputs that they share are held once."""
    pools: list[Federation] = []
    starts: list[int] = []  # where the rows of each federation begin
    for one in data:
        same = next((p for p, own in enumerate(pools) if _same_rows(own, one)), None)
        if same is None:
            starts.append(sum(len(own.y) for own in pools))
            pools.append(one)
        else:
            starts.append(sum(len(own.y) for own in pools[:same]))
    shared = len(pools) == 1
    x = pools[0].x if shared else torch.cat([own.x for own in pools])
    y = pools[0].y if shared else torch.cat([own.y for own in pools])
    train, validation, test = (_side_by_side([one.parts[part] for one in data], starts) for part in data[0].parts)
    tags = {name: np.concatenate([one.tags[name] for one in data]) for name in data[0].tags}
    return Federation(x, y, train, validation, test, data[0].classes, tags=tags, about=data[0].about)


def _same_rows(one: Federation, other: Federation) -> bool:
    alike = one.x.shape == other.x.shape and one.y.shape == other.y.shape
    same = one.x.data_ptr() == other.x.data_ptr() and one.y.data_ptr() == other.y.data_ptr()
    return alike and (same or (torch.equal(one.y, other.y) and torch.equal(one.x, other.x)))


def _side_by_side(rows: Sequence[Rows], starts: Sequence[int]) -> Rows:
    index = np.concatenate([own.index + start for own, start in zip(rows, starts, strict=True)])
    sizes = np.concatenate([own.sizes for own in rows])
    return Rows(index, np.concatenate([[0], np.cumsum(sizes)]))


def why_not(settings: Sequence[Experiment]) -> str | None:
    """What keeps runs from being lanes of one, or nothing."""
    first = settings[0]
    for other in settings[1:]:
        if first.methods.keys() != other.methods.keys():
            return "they have other groups of clients"
        for group, method in first.methods.items():
            reason = _differs(method, other.methods[group])
            if reason:
                return reason
        if first.data.x.shape[1:] != other.data.x.shape[1:] or first.data.tags.keys() != other.data.tags.keys():
            return "their data have other shapes or tags"
        if first.data.about.get("vocabulary") != other.data.about.get("vocabulary"):
            return "their texts have other vocabularies"
    unfit = next((m.net.unmappable[0] for m in first.methods.values() if m.net.unmappable), None)
    if unfit:
        return f'layer "{unfit}" of the net cannot be mapped over clients'
    if any(getattr(block, "on_request", False) for m in first.methods.values() for block in m.blocks().values()):
        return "clients ask the server for modules in the middle of a round"
    return None


def _differs(one: Method, other: Method) -> str | None:
    if type(one) is not type(other):
        return "they have other methods"
    differing = [f.name for f in fields(one) if f.name != "net" and getattr(one, f.name) != getattr(other, f.name)]
    free = (*(() if one.lr_used_in_hooks else ("lr",)), *one.in_steps_only)
    for name in differing:
        if name == "lr" and name not in free:
            return f"{type(one).__name__} uses its learning rate in other places than its steps"
        if name not in free:
            return f"{name} differs, and only seeds and {', '.join(free)} may"
    if differing and _courses(one) != _courses(other):
        return "their local training differs in more than rates"
    shapes: list[Any] = [[(name, value.shape) for name, value in m.net.init(0).items()] for m in (one, other)]
    return "their nets have other shapes" if shapes[0] != shapes[1] else None


def _courses(method: Method) -> list[Any]:
    """Local training of every kind, less the numbers that each client may have its own of."""
    return [
        [
            (phase.epochs, phase.on, phase.steps, [_without_rates(update) for update in phase.updates])
            for phase in phases
        ]
        for phases in (method.phases(), method.adaptation(), method.joining())
    ]


def _without_rates(update: Update) -> tuple[Any, ...]:
    pull = None if update.pull is None else replace(update.pull, strength=0.0)
    return update.train, update.optimizer, pull, update.repeat
