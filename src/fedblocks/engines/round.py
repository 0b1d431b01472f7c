"""One round of a federation, and one evaluation: gather, map, conclude."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedblocks.core.errors import DataError
from fedblocks.core.method import Method
from fedblocks.core.phases import Phase
from fedblocks.core.random import derive
from fedblocks.core.server import Cohort, bytes_per_slot, gather
from fedblocks.core.state import State, initial_state
from fedblocks.data.federation import Federation
from fedblocks.engines.batching import batches
from fedblocks.engines.close_round import ClientResults, Report, concluded, counts_by_client, speculate
from fedblocks.engines.job import Evaluated, Job, Trained


class Engine(Protocol):
    """A way to map local work over clients."""

    @property
    def name(self) -> str: ...

    def train(self, job: Job, score: str | None = None) -> Trained: ...

    def evaluate(self, job: Job, part: str) -> Evaluated: ...


@dataclass(frozen=True, eq=False)
class Experiment:
    """All that a round needs besides the state: methods by group of clients, data, seed."""

    methods: Mapping[str, Method]
    data: Federation
    seed: int
    groups: Sequence[str] = ()  # the group of each client; empty: all clients use the only method
    share: float = 1.0  # the largest part of any slot that one client may decide
    met: dict[tuple[int, ...], Who] = field(default_factory=dict, init=False, repr=False)  # the clients asked for last

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
    def of(method: Method, data: Federation, seed: int = 0) -> Experiment:
        return Experiment({"all": method}, data, seed)

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
        key = tuple(clients)
        if key not in self.met:
            self.met.clear()
            self.met[key] = _who(self.data, clients)
        ids, sizes, tags = self.met[key]
        return Cohort(ids, sizes, dict(tags), self.data.clients, round, derive(self.seed, round, "server"))

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


Who = tuple[Tensor, Tensor, dict[str, Tensor]]


def _who(data: Federation, clients: Sequence[int]) -> Who:
    """Numbers, sizes and tags of some clients, on the device of their data."""
    device, ids = data.x.device, np.asarray(clients, dtype=np.int64)
    sizes = torch.tensor([len(data.train[i]) for i in clients], dtype=torch.double, device=device)
    tags = {name: torch.from_numpy(np.array(values[ids])).to(device) for name, values in data.tags.items()}
    return torch.from_numpy(ids).to(device), sizes, tags


def run_round(
    setting: Experiment,
    state: State,
    clients: Sequence[int],
    engine: Engine,
    score: str | None = None,
    coming: Sequence[int] = (),
) -> tuple[State, Report]:
    """One round: what the clients learn, admitted and aggregated. The state that goes in is not changed.

    `score` names a part of the data to try trained models on, `coming` the clients of the next round if they are known.
    """
    offers: dict[str, ClientResults] = {}
    for group, ids in setting.members(clients).items():
        job = setting.job(group, ids, state, setting.methods[group].phases(), True, "train")
        offers[group] = ClientResults.of(job, engine.train(job, score), setting.share)
    hope = speculate(setting.methods, state, offers)
    setting.foresee(coming, state.round + 1)
    return concluded(setting.methods, state, offers, hope)


def evaluate(
    setting: Experiment, state: State, clients: Sequence[int], engine: Engine, part: str = "test", joining: bool = False
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
    setting: Experiment, state: State, clients: Sequence[int], engine: Engine, part: str = "test", joining: bool = False
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
        scores.setdefault(view, {}).update(counts_by_client(counts, ids))
    for name, values in evaluated.portraits.items():
        portraits.setdefault(name, {}).update(zip(ids, values.flatten(1).tolist(), strict=True))


def evaluation_jobs(setting: Experiment, state: State, clients: Sequence[int], joining: bool) -> Iterator[Job]:
    """What clients do before they are evaluated, a job for each group."""
    state = replace(state, private={}) if joining else state  # who never took part has kept nothing
    for group, ids in setting.members(clients).items():
        method = setting.methods[group]
        phases = method.joining() if joining else method.adaptation()
        yield setting.job(group, ids, state, phases, joining, "join" if joining else "adapt")
