"""The server's side of a federation: its methods, its enrolled clients, and what it
keeps between rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from fedblocks.core.admission import Refusal
from fedblocks.core.frozen import frozen_hashes
from fedblocks.core.method import Method
from fedblocks.core.random import derive
from fedblocks.core.server import Beginnings, Cohort
from fedblocks.core.state import State, initial_state
from fedblocks.core.task import CLASSIFICATION, Task
from fedblocks.data.sets.text import SCORES, scored_view
from fedblocks.engines.close_round import Report
from fedblocks.flower.wire.admission import Member
from fedblocks.flower.wire.messages import Counts, Part, Picture
from fedblocks.flower.wire.plans import Specs, plan_hash, plan_specs


@dataclass(frozen=True, eq=False)
class Progress:
    """Everything of a federation that the server keeps between two rounds."""

    state: State  # its private blocks are empty: clients keep their own
    kept: Mapping[int, int]  # client -> rounds done when an update of it was last used


@dataclass(frozen=True)
class Ask:
    """What clients are to do in a round."""

    train: bool = True
    score: Part | None = None  # try the trained models on this part, before aggregation
    evaluate: tuple[Part, ...] = ()  # try the models as they are sent on these parts
    # clients that never took part get their models, and nothing is learned from them
    joining: bool = False

    def views(self, method: Method) -> set[str]:
        """Return the names of the scores that clients may send; clients with texts
        count words in three ways.
        """
        local = {"local"} if self.train and self.score else set[str]()
        views = {scored_view(view, score) for view in method.views() for score in SCORES}
        return local | {f"{part}/{view}" for part in self.evaluate for view in views}


@dataclass(frozen=True, eq=False)
class EvaluatedClients:
    """What clients said of their models."""

    # "part/view" -> client -> right labels, scored labels, sum of losses, metrics
    counts: dict[str, dict[int, Counts]] = field(default_factory=dict)
    # name -> client -> numbers
    pictures: dict[str, dict[int, Picture]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Closed:
    """A round that is over."""

    progress: Progress
    report: Report
    evaluated: EvaluatedClients
    ignored: list[Refusal]  # messages that changed nothing: late ones, duplicates, replays
    abandoned: str = ""  # why the round did not count; then the progress is what it was


@dataclass(frozen=True, eq=False)
class ServerSide:
    """The methods of a federation and its enrolled clients."""

    methods: Mapping[str, Method]
    members: Mapping[int, Member]
    population: int  # how many clients there are, enrolled or not, unseen or not
    seed: int
    run: str
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    share: float = 1.0  # the largest part of a slot that one client may decide
    unseen: Sequence[int] = ()  # clients that never train
    task: Task = CLASSIFICATION
    # client -> why its node was refused, as "reason: detail"; empty if it was not
    turned_away: Callable[[int], str] = lambda client: ""
    # client -> why its last answer was not used; it is told
    refused: dict[int, str] = field(default_factory=dict)

    def start(self) -> Progress:
        """Return the progress before the first round."""
        return Progress(initial_state(self.methods, self.population, self.seed, self.device), {})

    @cached_property
    def beginnings(self) -> dict[str, Beginnings]:
        """What clients of each group start with."""
        return {
            group: Beginnings.of(method, self.seed, self.device)
            for group, method in self.methods.items()
        }

    @cached_property
    def frozen(self) -> dict[str, dict[str, str]]:
        """Group -> block that is never sent -> its content hash."""
        return {group: frozen_hashes(method, self.seed) for group, method in self.methods.items()}

    @cached_property
    def specs(self) -> dict[str, dict[str, Specs]]:
        """Group -> block -> the tensors of one copy."""
        return {group: plan_specs(method, self.seed) for group, method in self.methods.items()}

    @cached_property
    def plans(self) -> dict[str, str]:
        """Group -> hash of its plan."""
        return {
            group: plan_hash(method, self.specs[group], self.seed)
            for group, method in self.methods.items()
        }

    def lacking(self, client: int) -> str:
        """Say why a client cannot be asked; empty if it can."""
        if client not in self.members:
            return "no node has said that it is this client"
        member = self.members[client]
        if member.group not in self.methods:
            return "it says that it belongs to a group that does not exist"
        missing = {*self.methods[member.group].tags} - {*member.tags}
        return f'it does not say its tag "{min(missing)}"' if missing else ""

    def refusal_of(self, client: int, lacking: str) -> Refusal:
        """Return why a client is left out of a round: as it was told when it came, if it did."""
        reason, _, detail = self.turned_away(client).partition(": ")
        return (
            Refusal(client, reason, detail) if reason else Refusal(client, "unreachable", lacking)
        )

    def cohort(self, clients: Sequence[int], round: int) -> Cohort:
        members = [self.members[c] for c in clients]
        names = sorted(set.intersection(*({*m.tags} for m in members)))
        tags = {
            name: torch.tensor([m.tags[name] for m in members], device=self.device)
            for name in names
        }
        sizes = torch.tensor([m.size for m in members], dtype=torch.double, device=self.device)
        ids = torch.tensor(clients, dtype=torch.long, device=self.device)
        unseen = torch.tensor(self.unseen, dtype=torch.long, device=self.device)
        population = self.population - len(unseen)
        seed = derive(self.seed, round, "server")
        return Cohort(ids, sizes, tags, population, round, seed, unseen)
