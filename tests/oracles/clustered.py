"""Clustered FL (Sattler et al., 2021), algorithm 4 with several clusters: a cluster whose members'
changes cancel out is split by complete linkage on their cosines. Clients in no cluster take the one
with the lowest training loss.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .ifca import choice
from .modfl import clusters
from .plain import Array, Batches, Descent, Outcome, Params, Task, logits, mean, on


@dataclass
class Federation:
    """The server's models, and the members of each."""

    models: list[Params]
    members: list[set[int]] = field(default_factory=lambda: [set()])

    def home(self, client: int, task: Task) -> int:
        for number, group in enumerate(self.members):
            if client in group:
                return number
        return choice(self.models, task, client)


def vector(w: Params) -> Array:
    return np.concatenate([value.ravel() for value in w.values()])


def bipartition(changes: dict[int, Array]) -> tuple[list[int], list[int]]:
    """From one group each, join the two groups whose farthest members are the nearest,
    until there are two.
    """

    def far(one: list[int], other: list[int]) -> float:
        cosines = [
            changes[i] @ changes[j] / np.sqrt((changes[i] @ changes[i]) * (changes[j] @ changes[j]))
            for i in one
            for j in other
        ]
        return 1 - min(cosines)

    groups = [[i] for i in sorted(changes)]
    while len(groups) > 2:
        pairs = [
            (far(a, b), p, q) for p, a in enumerate(groups) for q, b in enumerate(groups) if p < q
        ]
        _, p, q = min(pairs)
        groups[p] = sorted(groups[p] + groups[q])
        del groups[q]
    return groups[0], groups[1]


def heaviness(
    half: list[int], changes: dict[int, Array], weight: dict[int, float]
) -> tuple[float, float]:
    return sum(weight[i] for i in half), float(np.linalg.norm(sum(changes[i] for i in half)))


def one_round(
    task: Task,
    descent: Descent,
    now: Federation,
    cohort: dict[int, list[Batches]],
    may_split: bool,
    limit: int,
    epsilon1: float,
    epsilon2: float,
    min_size: int,
    weight: dict[int, float],
) -> Federation:
    home = {i: now.home(i, task) for i in cohort if task.size(i)}
    copies = {i: descent.run(now.models[home[i]], cohort[i][0], on(task, i)) for i in home}
    changes = {i: vector(copies[i]) - vector(now.models[home[i]]) for i in home}
    members = [group | {i for i in home if home[i] == c} for c, group in enumerate(now.members)]
    for c in range(len(members)):
        here = {i: changes[i] for i in home if home[i] == c}
        if not may_split or len(here) <= min_size or len(members) == limit:
            continue
        together = sum(weight[i] * here[i] for i in here) / sum(weight[i] for i in here)
        if (
            np.linalg.norm(together) < epsilon1
            and max(np.linalg.norm(d) for d in here.values()) > epsilon2
        ):
            first, second = sorted(
                bipartition(here), key=lambda half: heaviness(half, here, weight), reverse=True
            )
            # the heavier half keeps the slot; members that are absent have no cluster now
            members[c] = set(first)
            members.append(set(second))
            home |= dict.fromkeys(second, len(members) - 1)
    models = []
    for c in range(len(members)):
        present = [i for i in home if home[i] == c]
        models.append(
            mean([copies[i] for i in present], [weight[i] for i in present])
            if present
            else now.models[c]
        )
    return Federation(models, members)


def begin(task: Task, descent: Descent, count: int, cohort: dict[int, list[Batches]]) -> Federation:
    """One round of FedAvg; clients whose changes are alike are a cluster, by examples."""
    start = task.start[0]
    copies = {
        i: descent.run(start, batches, on(task, i))
        for i, (batches,) in cohort.items()
        if task.size(i)
    }
    group = clusters({i: vector(w) - vector(start) for i, w in copies.items()}, count, task)
    members = [{i for i in group if group[i] == c} for c in range(count)]
    models = [mean([copies[i] for i in m], [task.size(i) for i in m]) for m in members]
    return Federation(models, members)


def run(
    task: Task,
    descent: Descent,
    limit: int,
    epsilon1: float,
    epsilon2: float,
    first_round: int,
    min_size: int,
    by_examples: bool = True,
) -> tuple[Outcome, list[set[int]]]:
    now = Federation([task.start[0]])
    weight = {i: float(task.size(i)) if by_examples else 1.0 for i in task.clients}
    for t, cohort in enumerate(task.rounds):
        now = one_round(
            task,
            descent,
            now,
            cohort,
            t >= first_round,
            limit,
            epsilon1,
            epsilon2,
            min_size,
            weight,
        )
    answers = {i: logits(now.models[now.home(i, task)], task.test[i][0]) for i in task.clients}
    waiting = [task.start[0]] * (limit - len(now.models))  # slots that no split has used
    membership = np.full((len(task.clients), 1), -1.0)
    for c, group in enumerate(now.members):
        membership[sorted(group)] = c
    slots = [{"value": row} for row in membership]
    return Outcome(
        {"clusters": now.models + waiting, "membership": slots}, {}, {"personal": answers}
    ), now.members
