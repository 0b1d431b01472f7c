"""One round of a federation, and one evaluation: gather, map, close."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedblocks.core.admission import Refusal
from fedblocks.core.errors import DataError, UserError, count_of
from fedblocks.core.frozen import FrozenRecord, check_untrained
from fedblocks.core.method import Method
from fedblocks.core.phases import Phase
from fedblocks.core.random import derive
from fedblocks.core.server import Beginnings, Cohort, bytes_per_slot, gather
from fedblocks.core.state import State, initial_state
from fedblocks.core.structure import check_structure
from fedblocks.core.torch_modes import in_own_modes
from fedblocks.data.federation import Federation
from fedblocks.engines import speculation
from fedblocks.engines.close_round import ClientResults, Report, close_round, counts_by_client
from fedblocks.engines.failures import first_error
from fedblocks.engines.job import Evaluated, Job, Trained
from fedblocks.engines.plans import Roster
from fedblocks.engines.row_tables import RowTables
from fedblocks.engines.vectorised import lay_out


class Engine(Protocol):
    """A way to map local work over clients."""

    @property
    def name(self) -> str: ...

    def train(self, job: Job, score: str | None = None) -> Trained: ...

    def evaluate(self, job: Job, parts: Sequence[str]) -> Evaluated: ...


@dataclass(frozen=True, eq=False)
class Experiment:
    """All that a round needs besides the state: methods by group of clients, data, seed."""

    methods: Mapping[str, Method]
    data: Federation
    seed: int
    groups: Sequence[str] = ()  # the group of each client; empty: all clients use the only method
    share: float = 1.0  # the largest part of any slot that one client may decide
    # clients that never train; each has a slot where clients have one, and nobody reads it
    unseen: Sequence[int] = ()
    tables: RowTables = field(default_factory=RowTables, init=False, repr=False)
    last_cohort: dict[tuple[int, ...], CohortTensors] = field(
        default_factory=dict, init=False, repr=False
    )

    def __post_init__(self) -> None:
        for group, method in self.methods.items():
            check_structure(method)
            _check_schedules(method)
            check_untrained(method)
            method.net.place(self.data.device)
            for part in method.needs:
                self._check_part(group, type(method).__name__, part)

    def _check_part(self, group: str, method: str, part: str) -> None:
        """Refuse clients that train and lack a part of the data that their method needs."""
        lacking = (self.data.train.sizes > 0) & (self.data.parts[part].sizes == 0)
        if self.groups:
            lacking &= np.array([own == group for own in self.groups])
        if lacking.any():
            clients = f'"{self.data.names[int(lacking.argmax())]}"'
            others = int(lacking.sum()) - 1
            clients += f" and {count_of(others, 'other client')} have" if others else " has"
            raise DataError(
                f"{method} needs a {part} part, and {clients} none",
                f"split the data with a {part} share, e.g. split=(0.6, 0.2, 0.2), or leave out "
                f"such clients (`subset`)",
            )

    @staticmethod
    def of(
        method: Method, data: Federation, seed: int = 0, rounds: int | None = None
    ) -> Experiment:
        """One method for all clients; `rounds` is how many there will be, which schedules over
        the run's own rounds need to know.
        """
        return Experiment({"all": method if rounds is None else method.over(rounds)}, data, seed)

    def start(self) -> State:
        """The state before the first round."""
        return initial_state(self.methods, self.data.clients, self.seed, self.data.device)

    @cached_property
    def beginnings(self) -> dict[str, Beginnings]:
        """What clients of each group start with."""
        seed, device = self.seed, self.data.device
        return {group: Beginnings.of(one, seed, device) for group, one in self.methods.items()}

    @cached_property
    def frozen(self) -> FrozenRecord:
        """What is frozen in the models of all groups, as it is used here."""
        held = {group: beginnings.frozen for group, beginnings in self.beginnings.items()}
        return FrozenRecord.of(self.methods, held, self.seed, self.data.device)

    def members(self, clients: Sequence[int]) -> dict[str, list[int]]:
        """Some clients by group, each in the order of their ids."""
        members: dict[str, list[int]] = {name: [] for name in self.methods}
        only = next(iter(self.methods))
        for client in sorted(clients):
            members[self.groups[client] if self.groups else only].append(client)
        return {name: ids for name, ids in members.items() if ids}

    def own(self, clients: Sequence[int]) -> list[int]:
        """Those of some clients whose data are here: all, unless other processes have some."""
        return list(clients)

    def cohort(self, clients: Sequence[int], round: int) -> Cohort:
        key = tuple(clients)
        if key not in self.last_cohort:
            self.last_cohort.clear()
            self.last_cohort[key] = _cohort_tensors(self.data, clients)
        ids, sizes, tags = self.last_cohort[key]
        population = self.data.clients - len(self.unseen)
        seed = derive(self.seed, round, "server")
        return Cohort(ids, sizes, dict(tags), population, round, seed, self._unseen)

    @cached_property
    def _unseen(self) -> Tensor:
        return torch.tensor(list(self.unseen), dtype=torch.long, device=self.data.device)

    def job(
        self,
        group: str,
        clients: Sequence[int],
        state: State,
        phases: list[Phase],
        training: bool,
        purpose: str,
    ) -> Job:
        method = self.methods[group]
        cohort = self.cohort(clients, state.round)
        job = Job(
            method=method,
            phases=phases,
            cohort=cohort,
            sent=gather(method, state, cohort, self.beginnings[group]),
            bytes_per_slot=bytes_per_slot(method, state),
            data=self.data,
            seed=self.seed,
            training=training,
            purpose=purpose,
            tables=self.tables,
        )
        vars(job)["ids"] = [*clients]  # a GPU need not be asked for what it was told
        return job

    def training_job(self, group: str, clients: Sequence[int], state: State) -> Job:
        """What the clients of a group do in the next round."""
        return self.job(group, clients, state, self.methods[group].phases(), True, "train")

    def rosters(self, clients: Sequence[int], round: int) -> dict[str, Roster]:
        """Who will train in a round, by group."""
        device, rosters = self.data.device, {}
        for group, ids in self.members(clients).items():
            method, sizes = self.methods[group], self.data.train.sizes_of(ids)
            origins = [(self.seed, round, i) for i in ids]
            rosters[group] = Roster(method, method.phases(), "train", origins, sizes, device)
        return rosters


def _check_schedules(method: Method) -> None:
    """Refuse schedules over the run's own rounds where nobody has said how many these are."""
    for name in method.open_schedules:
        what = f"{type(method).__name__}.{name} goes over the rounds of the run"
        fix = "say it: Experiment.of(method, data, rounds=100), or give the schedule a whole number"
        raise UserError(f"{what}, and nobody says how many these are", fix)


CohortTensors = tuple[Tensor, Tensor, dict[str, Tensor]]  # ids, sizes, tags


def _cohort_tensors(data: Federation, clients: Sequence[int]) -> CohortTensors:
    """Numbers, sizes and tags of some clients, on the device of their data."""
    device = data.device
    ids = np.asarray(clients, dtype=np.int64)
    sizes = torch.tensor([len(data.train[i]) for i in clients], dtype=torch.double, device=device)
    tags = {
        name: torch.from_numpy(np.array(values[ids])).to(device)
        for name, values in data.tags.items()
    }
    return torch.from_numpy(ids).to(device), sizes, tags


@in_own_modes
def run_round(
    experiment: Experiment,
    state: State,
    clients: Sequence[int],
    engine: Engine,
    score: str | None = None,
    coming: Sequence[int] = (),
) -> tuple[State, Report]:
    """One round: what the clients learn, admitted and aggregated. The state that goes in is not
    changed.

    `score` names a part of the data to try trained models on, `coming` the clients of the next
    round if they are known.
    """
    results: dict[str, ClientResults] = {}
    for group, ids in experiment.members(clients).items():
        job = experiment.training_job(group, ids, state)
        with first_error():
            results[group] = ClientResults.of(job, engine.train(job, score))
    end = experiment.methods, state, results, experiment.share
    pays = speculation.pays_on(experiment.data.device)
    speculated = speculation.speculate(*end) if pays else None
    lay_out(experiment.tables, [*experiment.rosters(coming, state.round + 1).values()], engine)
    return close_round(*end) if speculated is None else speculated.settle(*end)


# view -> client -> right labels, scored labels, sum of losses, measured metrics
Scores = dict[str, dict[int, tuple[float, ...]]]
Portraits = dict[str, dict[int, list[float]]]  # name -> client -> numbers


@dataclass(frozen=True, eq=False)
class Evaluation:
    """How the models of some clients do."""

    scores: dict[str, Scores] = field(default_factory=dict)  # by part of the data
    portraits: Portraits = field(default_factory=dict)
    failures: list[Refusal] = field(default_factory=list)  # clients whose own work failed

    def add(self, evaluated: Evaluated, ids: list[int]) -> None:
        """Write down what an engine says of a group of clients."""
        for part, views in evaluated.counts.items():
            scores = self.scores.setdefault(part, {})
            for view, counts in views.items():
                scores.setdefault(view, {}).update(counts_by_client(counts, ids))
        for name, values in evaluated.portraits.items():
            rows = values[..., None].flatten(1).tolist()
            self.portraits.setdefault(name, {}).update(zip(ids, rows, strict=True))


@in_own_modes
def evaluate(
    experiment: Experiment,
    state: State,
    clients: Sequence[int],
    engine: Engine,
    part: str = "test",
    joining: bool = False,
) -> Scores:
    """How each client's models do on a part of its data: view -> client -> (right labels, scored
    labels, sum of losses, and the metrics that need outputs, in their order in the task).

    Clients adapt on their training data first, as their method says; nothing of it is kept.
    `joining` treats them as clients that never took part.
    """
    return evaluate_parts(experiment, state, clients, engine, (part,), joining).scores.get(part, {})


def evaluate_parts(
    experiment: Experiment,
    state: State,
    clients: Sequence[int],
    engine: Engine,
    parts: Sequence[str],
    joining: bool = False,
) -> Evaluation:
    """Evaluate on several parts of the data after one adaptation, with the models' portraits."""
    evaluation = Evaluation()
    for job in evaluation_jobs(experiment, state, clients, joining):
        with first_error():
            evaluation.add(engine.evaluate(job, parts), job.ids)
    return evaluation


def evaluation_jobs(
    experiment: Experiment, state: State, clients: Sequence[int], joining: bool
) -> Iterator[Job]:
    """What clients do before they are evaluated, a job for each group."""
    for group, ids in experiment.members(clients).items():
        yield evaluation_job(experiment, group, ids, state, joining)


def evaluation_job(
    experiment: Experiment, group: str, ids: Sequence[int], state: State, joining: bool
) -> Job:
    """What the clients of a group do before they are evaluated."""
    state = replace(state, private={}) if joining else state  # who never took part has kept nothing
    method = experiment.methods[group]
    phases = method.joining() if joining else method.adaptation()
    return experiment.job(group, ids, state, phases, joining, "join" if joining else "adapt")
