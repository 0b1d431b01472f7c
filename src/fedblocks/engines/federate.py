"""One round of a federation, and one evaluation: gather, map, admit, aggregate, conclude."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedblocks.core.aggregate import Uploads, aggregate, private_of, uploads_of
from fedblocks.core.errors import DataError
from fedblocks.core.gate import Refusal, admit, capped, fitting
from fedblocks.core.method import Method
from fedblocks.core.parts import Blocks
from fedblocks.core.phases import Phase
from fedblocks.core.population import merged
from fedblocks.core.random import derive
from fedblocks.core.server import Cohort, bytes_per_slot, gather
from fedblocks.core.state import State, initial_state
from fedblocks.data.federation import Federation
from fedblocks.engines.job import Evaluated, Job, Trained


class Engine(Protocol):
    """A way to map local work over clients."""

    @property
    def name(self) -> str: ...

    def train(self, job: Job, score: str | None = None) -> Trained: ...

    def evaluate(self, job: Job, part: str) -> Evaluated: ...


@dataclass(frozen=True, eq=False)
class Setting:
    """All that a round needs besides the state: methods by group of clients, data, seed."""

    methods: Mapping[str, Method]
    data: Federation
    seed: int
    groups: Sequence[str] = ()  # the group of each client; empty: all clients use the only method
    share: float = 1.0  # the largest part of any slot that one client may decide

    def __post_init__(self) -> None:
        for group, method in self.methods.items():
            method.net.place(self.data.x.device)
            for part in method.needs:
                self._check_part(group, type(method).__name__, part)

    def _check_part(self, group: str, method: str, part: str) -> None:
        """Refuse clients that train and lack a part of the data that their method needs."""
        lacking = (self.data.train.sizes > 0) & (self.data.parts[part].sizes == 0)
        if self.groups:
            lacking &= np.array([own == group for own in self.groups])
        if lacking.any():
            first, count = self.data.names[int(lacking.argmax())], int(lacking.sum())
            told = f"{first} has" if count == 1 else f"{first} and {count - 1} other clients have"
            raise DataError(
                f"{method} needs a {part} part, and {told} none",
                f"split the data with a {part} share, e.g. split=(0.6, 0.2, 0.2), or leave out such clients (`subset`)",
            )

    @staticmethod
    def of(method: Method, data: Federation, seed: int = 0) -> Setting:
        return Setting({"all": method}, data, seed)

    def start(self) -> State:
        """The state before the first round."""
        return initial_state(self.methods, self.data.clients, self.seed, self.data.x.device)

    def members(self, clients: Sequence[int]) -> dict[str, list[int]]:
        """Some clients by group, each in the order of their ids."""
        found: dict[str, list[int]] = {name: [] for name in self.methods}
        for client in sorted(clients):
            found[self.groups[client] if self.groups else next(iter(self.methods))].append(client)
        return {name: ids for name, ids in found.items() if ids}

    def cohort(self, clients: Sequence[int], round: int) -> Cohort:
        device, ids = self.data.x.device, np.asarray(clients, dtype=np.int64)
        sizes = torch.tensor([len(self.data.train[i]) for i in clients], dtype=torch.double, device=device)
        tags = {name: torch.from_numpy(np.array(values[ids])).to(device) for name, values in self.data.tags.items()}
        seed = derive(self.seed, round, "server")
        return Cohort(torch.from_numpy(ids).to(device), sizes, tags, self.data.clients, round, seed)

    def job(
        self, group: str, clients: Sequence[int], state: State, phases: list[Phase], training: bool, purpose: str
    ) -> Job:
        method, cohort = self.methods[group], self.cohort(clients, state.round)
        sent, sizes = gather(method, state, cohort, self.seed), bytes_per_slot(method, state)
        return Job(method, phases, cohort, sent, sizes, self.data, self.seed, training, purpose)


@dataclass(frozen=True, eq=False)
class Report:
    """What happened in a round besides learning."""

    clients: list[int]
    bytes_down: dict[str, dict[int, int]]  # block -> client -> bytes
    bytes_up: dict[str, dict[int, int]]
    refusals: list[Refusal]
    counts: dict[str, dict[int, tuple[float, float, float]]]  # "local" -> client -> correct, scored, loss


@dataclass(frozen=True, eq=False)
class Offer:
    """What a group of clients ends a round with, before anybody looked at it."""

    job: Job
    trained: Trained
    uploads: Uploads
    private: Blocks

    @staticmethod
    def of(job: Job, trained: Trained, share: float = 1.0) -> Offer:
        uploads = uploads_of(job.method, trained.blocks, trained.weights, job.sent.reads, trained.wanted, job.cohort)
        return Offer(job, trained, capped(uploads, share), private_of(job.method, trained.blocks))

    @property
    def limits(self) -> Tensor:
        """[clients]: the largest weight that each may ask for, which is one for each of its labels."""
        return (self.job.cohort.sizes * self.job.data.y.shape[1:].numel()).clamp(min=1)


def run_round(
    setting: Setting, state: State, clients: Sequence[int], engine: Engine, score: str | None = None
) -> tuple[State, Report]:
    """One round: what the clients learn, admitted and aggregated. The state that goes in is not changed."""
    offers: dict[str, Offer] = {}
    for group, ids in setting.members(clients).items():
        job = setting.job(group, ids, state, setting.methods[group].phases(), True, "train")
        offers[group] = Offer.of(job, engine.train(job, score), setting.share)
    return concluded(setting, state, clients, offers, hopeful(setting, state, offers))


def concluded(
    setting: Setting, state: State, clients: Sequence[int], offers: Mapping[str, Offer], hoped: State | None
) -> tuple[State, Report]:
    """The server's side of a round: admit what clients offer, aggregate it."""
    report = Report(sorted(clients), {}, {}, [], {})
    groups: dict[str, Uploads] = {}
    cohorts: dict[str, Cohort] = {}
    private: dict[int, Blocks] = {}
    for group, offer in offers.items():
        groups[group], cohorts[group], kept = _admitted(offer, state, hoped, report)
        private |= kept
    if hoped is None or report.refusals:
        hoped = aggregate(setting.methods, state, groups, cohorts)
    return replace(hoped, private=merged(state.private, private)), report


def hopeful(setting: Setting, state: State, offers: Mapping[str, Offer]) -> State | None:
    """The state if everybody is admitted, queued behind the training; if it is finite, so are all uploads."""
    plain = all(type(setting.methods[group]).conclude is Method.conclude for group in offers)
    if not plain or not all(fitting(offer.uploads, state.server) for offer in offers.values()):
        return None
    groups = {group: offer.uploads for group, offer in offers.items()}
    return aggregate(setting.methods, state, groups, {group: offer.job.cohort for group, offer in offers.items()})


def _admitted(
    offer: Offer, state: State, hoped: State | None, report: Report
) -> tuple[Uploads, Cohort, dict[int, Blocks]]:
    """The uploads and private blocks that are used, with what travelled written to the report."""
    job, trained, uploads = offer.job, offer.trained, offer.uploads
    after = None if hoped is None else hoped.server
    good, refusals = admit(uploads, offer.private, job.cohort.ids, offer.limits, state.server, after)
    report.refusals.extend(refusals)
    _note(report.bytes_down, trained.bytes_down, job.ids)
    _note(report.bytes_up, {name: upload.bytes_up() for name, upload in uploads.items()}, job.ids)
    for view, counts in trained.counts.items():
        report.counts.setdefault(view, {}).update(_by_client(counts, job.ids))
    kept = {name: upload.keep(good) for name, upload in uploads.items()} if refusals else uploads
    cohort = _kept_cohort(job.cohort, good) if refusals else job.cohort
    return kept, cohort, _private_by_client(offer.private, job.ids, {r.client for r in refusals})


def _kept_cohort(cohort: Cohort, good: Tensor) -> Cohort:
    tags = {name: values[good] for name, values in cohort.tags.items()}
    return replace(cohort, ids=cohort.ids[good], sizes=cohort.sizes[good], tags=tags)


def _private_by_client(private: Blocks, ids: list[int], refused: set[int]) -> dict[int, Blocks]:
    """Copies, so that what one client keeps does not hold the memory of its whole cohort."""
    apart = {
        name: {k: [own.clone() for own in v.unbind()] for k, v in block.items()} for name, block in private.items()
    }
    return {
        i: {name: {k: v[m] for k, v in block.items()} for name, block in apart.items()}
        for m, i in enumerate(ids)
        if private and i not in refused
    }


def _note(into: dict[str, dict[int, int]], traffic: Mapping[str, Tensor], ids: list[int]) -> None:
    for name, values in traffic.items():
        into.setdefault(name, {}).update(zip(ids, values.tolist(), strict=True))


def _by_client(counts: Tensor, ids: list[int]) -> dict[int, tuple[float, float, float]]:
    return {i: (c, n, loss) for i, (c, n, loss) in zip(ids, counts.tolist(), strict=True)}


def evaluate(
    setting: Setting, state: State, clients: Sequence[int], engine: Engine, part: str = "test", joining: bool = False
) -> dict[str, dict[int, tuple[float, float, float]]]:
    """How each client's models do on a part of its data: view -> client -> (correct, scored labels, sum of losses).

    Clients adapt on their training data first, as their method says; nothing of it is kept. `joining` treats
    them as clients that never took part.
    """
    return evaluation(setting, state, clients, engine, part, joining)[0]


Scores = dict[str, dict[int, tuple[float, float, float]]]  # view -> client -> correct, scored labels, sum of losses
Portraits = dict[str, dict[int, list[float]]]  # name -> client -> numbers
Evaluation = tuple[Scores, Portraits]


def evaluation(
    setting: Setting, state: State, clients: Sequence[int], engine: Engine, part: str = "test", joining: bool = False
) -> Evaluation:
    """What `evaluate` says, and the portraits of the clients' models: name -> client -> numbers."""
    found: Scores = {}
    portraits: Portraits = {}
    for job in evaluation_jobs(setting, state, clients, joining):
        by_client(engine.evaluate(job, part), job.ids, found, portraits)
    return found, portraits


def by_client(evaluated: Evaluated, ids: list[int], scores: Scores, portraits: Portraits) -> None:
    """Write what an engine found to the tables of an evaluation."""
    for view, counts in evaluated.counts.items():
        scores.setdefault(view, {}).update(_by_client(counts, ids))
    for name, values in evaluated.portraits.items():
        portraits.setdefault(name, {}).update(zip(ids, values.flatten(1).tolist(), strict=True))


def evaluation_jobs(setting: Setting, state: State, clients: Sequence[int], joining: bool) -> Iterator[Job]:
    """What clients do before they are evaluated, a job for each group."""
    state = replace(state, private={}) if joining else state  # who never took part has kept nothing
    for group, ids in setting.members(clients).items():
        method = setting.methods[group]
        phases = method.joining() if joining else method.adaptation()
        yield setting.job(group, ids, state, phases, joining, "join" if joining else "adapt")
