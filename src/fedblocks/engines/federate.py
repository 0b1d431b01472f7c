"""One round of a federation, and one evaluation: gather, map, admit, aggregate, conclude."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedblocks.core.aggregate import Uploads, aggregate, conclude, private_of, reduced, uploads_of
from fedblocks.core.errors import DataError
from fedblocks.core.gate import Examination, Refusal, admit, capped, examined, fitting
from fedblocks.core.method import Method
from fedblocks.core.parts import Blocks, Params
from fedblocks.core.phases import Phase
from fedblocks.core.population import merged
from fedblocks.core.random import derive
from fedblocks.core.server import Cohort, bytes_per_slot, gather
from fedblocks.core.state import State, initial_state
from fedblocks.data.federation import Federation
from fedblocks.engines.job import Evaluated, Job, Trained
from fedblocks.engines.orders import batches


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

    def foresee(self, clients: Sequence[int], round: int) -> None:
        """Make the orders of a coming round, which costs nothing while a GPU is busy with the one before."""
        if self.data.x.device.type != "cuda":
            return
        for group, ids in self.members(clients).items():
            method = self.methods[group]
            for number, phase in enumerate(method.phases()):
                for client in ids:
                    count = len(self.data.train[client])
                    batches(method, phase, number, count, self.seed, round, client, "train")


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
    setting: Setting,
    state: State,
    clients: Sequence[int],
    engine: Engine,
    score: str | None = None,
    coming: Sequence[int] = (),
) -> tuple[State, Report]:
    """One round: what the clients learn, admitted and aggregated. The state that goes in is not changed.

    `score` names a part of the data to try trained models on, `coming` the clients of the next round if they are known.
    """
    offers: dict[str, Offer] = {}
    for group, ids in setting.members(clients).items():
        job = setting.job(group, ids, state, setting.methods[group].phases(), True, "train")
        offers[group] = Offer.of(job, engine.train(job, score), setting.share)
    hope = hopeful(setting, state, offers)
    setting.foresee(coming, state.round + 1)
    return concluded(setting, state, clients, offers, hope)


@dataclass(frozen=True, eq=False)
class Hope:
    """What a round leads to if everybody is admitted; queued behind the training, before anybody looks at it."""

    state: State  # before methods conclude; if it is finite, so are all uploads
    examinations: dict[str, Examination]  # of each group


def concluded(
    setting: Setting, state: State, clients: Sequence[int], offers: Mapping[str, Offer], hope: Hope | None
) -> tuple[State, Report]:
    """The server's side of a round: admit what clients offer, aggregate it."""
    report = Report(sorted(clients), {}, {}, [], {})
    groups: dict[str, Uploads] = {}
    cohorts: dict[str, Cohort] = {}
    private: dict[int, Blocks] = {}
    for group, offer in offers.items():
        good, refusals = _judged(offer, state, None if hope is None else hope.examinations[group])
        groups[group], cohorts[group], kept = _admitted(offer, good, refusals, report)
        private |= kept
    if hope is None or report.refusals:
        after = aggregate(setting.methods, state, groups, cohorts)
    else:
        after = conclude(setting.methods, state, hope.state, groups, cohorts)
    return replace(after, private=merged(state.private, private)), report


def hopeful(setting: Setting, state: State, offers: Mapping[str, Offer]) -> Hope | None:
    """The hope for a round; nothing if uploads are not even of the right shape."""
    if not all(fitting(offer.uploads, state.server) for offer in offers.values()):
        return None
    after = reduced(state, {group: offer.uploads for group, offer in offers.items()})
    return Hope(after, {group: _examined(offer, state, after.server) for group, offer in offers.items()})


def _examined(offer: Offer, state: State, after: Mapping[str, Params]) -> Examination:
    return examined(offer.uploads, offer.private, offer.job.cohort.ids, offer.limits, state.server, after)


def _judged(offer: Offer, state: State, examination: Examination | None) -> tuple[Tensor, list[Refusal]]:
    """Who is admitted, [clients], and why the others are not; if anything is wrong, each is looked at alone."""
    if examination is not None:
        good, refusals = examination.judged()
        if not refusals:
            return good, []
    return admit(offer.uploads, offer.private, offer.job.cohort.ids, offer.limits, state.server)


def _admitted(
    offer: Offer, good: Tensor, refusals: list[Refusal], report: Report
) -> tuple[Uploads, Cohort, dict[int, Blocks]]:
    """The uploads and private blocks that are used, with what travelled written to the report."""
    job, trained, uploads = offer.job, offer.trained, offer.uploads
    report.refusals.extend(refusals)
    _note(report.bytes_down, trained.bytes_down, job.ids)
    _note(report.bytes_up, {name: upload.bytes_up() for name, upload in uploads.items()}, job.ids)
    for view, counts in trained.counts.items():
        report.counts.setdefault(view, {}).update(_by_client(counts, job.ids))
    kept = {name: upload.keep(good) for name, upload in uploads.items()} if refusals else uploads
    cohort = _kept_cohort(job.cohort, good) if refusals else job.cohort
    alone = len(job.ids) < job.cohort.population
    return kept, cohort, _private_by_client(offer.private, job.ids, {r.client for r in refusals}, alone)


def _kept_cohort(cohort: Cohort, good: Tensor) -> Cohort:
    tags = {name: values[good] for name, values in cohort.tags.items()}
    return replace(cohort, ids=cohort.ids[good], sizes=cohort.sizes[good], tags=tags)


def _private_by_client(private: Blocks, ids: list[int], refused: set[int], alone: bool) -> dict[int, Blocks]:
    """What each keeps: `alone` in copies of its own, so that it does not hold the memory of its whole cohort."""
    apart = {name: {k: _apart(v, alone) for k, v in block.items()} for name, block in private.items()}
    return {
        i: {name: {k: v[m] for k, v in block.items()} for name, block in apart.items()}
        for m, i in enumerate(ids)
        if private and i not in refused
    }


def _apart(stack: Tensor, alone: bool) -> Sequence[Tensor]:
    return [own.clone() for own in stack.unbind()] if alone else stack.clone().unbind()


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
