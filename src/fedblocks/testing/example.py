"""What a contract check is given: a method, a small federation, and what is known of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedblocks.core.method import Method
from fedblocks.core.random import generator
from fedblocks.data.federation import Federation
from fedblocks.engines.round import Experiment
from fedblocks.testing.rounds import KeptRun

Make = Callable[..., Method]  # a method's class, or a function of its options


@dataclass(frozen=True, eq=False)
class Reduction:
    """With these options the method is another one: blocks of ours equal blocks of
    theirs, tensor by tensor.
    """

    says: str
    equals: Make
    blocks: Mapping[str, str]  # our block -> theirs
    options: Mapping[str, Any] = field(default_factory=dict)  # of our method
    # options of the other, besides those both have
    theirs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Alone:
    """With these options and a single client, these blocks together are a net trained
    by `torch.optim.SGD`.
    """

    blocks: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    says: str = "a single client trains like torch.optim.SGD"


@dataclass(frozen=True, eq=False)
class Example:
    """A method in a federation that is small, and in which its mechanism is active."""

    name: str
    method: Make
    options: Mapping[str, Any]  # the method's, its net included
    federation: Federation
    # options of a group alone
    groups: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"all": {}})
    members: Sequence[str] = ()  # the group of each client; empty: there is one group
    rounds: int = 3
    cohort: int = 4  # clients in a round
    seed: int = 0
    # another value of an option, to see that it matters
    others: Mapping[str, Any] = field(default_factory=dict)
    reductions: tuple[Reduction | Alone, ...] = ()
    plan: str | None = None  # the reviewed plan
    # "check" or "check/part" -> why it cannot hold
    exceptions: Mapping[str, str] = field(default_factory=dict)
    # kind of the run, engine -> what checks have in common
    runs: dict[tuple[str, str], KeptRun] = field(default_factory=dict, init=False, repr=False)

    def methods(self, **changes: Any) -> dict[str, Method]:
        """The method of each group, with some options changed."""
        return {
            group: self.method(**{**self.options, **own, **changes}).over(self.rounds)
            for group, own in self.groups.items()
        }

    def experiment(
        self, federation: Federation | None = None, origins: Sequence[int] = (), **changes: Any
    ) -> Experiment:
        """A setting of its own, so that nothing can hide on an object; `origins` names
        whom each client stands for.
        """
        chosen = self.federation if federation is None else federation
        members = [self.members[i] for i in origins] if origins and self.members else self.members
        return Experiment(self.methods(**changes), chosen, self.seed, members)

    @property
    def everybody(self) -> list[int]:
        return list(range(self.federation.clients))

    def cohorts(self) -> list[list[int]]:
        """Who takes part in each round."""
        draws = [generator(self.seed, "contract cohort", r) for r in range(self.rounds)]
        chosen = [rng.choice(self.federation.clients, self.cohort, replace=False) for rng in draws]
        return [np.sort(who).tolist() for who in chosen]
