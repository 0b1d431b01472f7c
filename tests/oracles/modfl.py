"""ModFL (Liang et al., 2022): W_c among the clients of a device, W_o among those of a
use, trained together.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from .fedper import base, head
from .plain import Array, Descent, Params, Task, logits, losses, mean, on


@dataclass(frozen=True)
class Modules:
    """What there is after the last round."""

    configurations: list[Params]  # by device
    operations: list[Params]  # by use
    use: dict[int, int]  # client -> its use, as far as it is known
    logits: dict[int, Array]  # client -> [test examples, classes]


def averages(
    copies: dict[int, Params], kind: dict[int, int], old: list[Params], task: Task
) -> list[Params]:
    """W_k <- sum over the clients of kind k of n W / sum n; what nobody trained stays."""
    new = []
    for k, before in enumerate(old):
        members = [i for i in copies if kind[i] == k and task.size(i)]
        new.append(
            mean([copies[i] for i in members], [task.size(i) for i in members])
            if members
            else before
        )
    return new


def run(
    task: Task, descent: Descent, start: list[Params], device: dict[int, int], use: dict[int, int]
) -> Modules:
    """`start` has a whole model for each device; the operation modules all start as
    that of the first.
    """
    configurations = [base(w) for w in start]
    operations = [head(start[0])] * (max(use.values()) + 1)
    for cohort in task.rounds:
        trained = {
            i: descent.run(
                {**configurations[device[i]], **operations[use[i]]}, batches, on(task, i)
            )
            for i, (batches,) in cohort.items()
        }
        configurations = averages(
            {i: base(w) for i, w in trained.items()}, device, configurations, task
        )
        operations = averages({i: head(w) for i, w in trained.items()}, use, operations, task)
    models = {i: {**configurations[device[i]], **operations[use[i]]} for i in task.clients}
    return Modules(
        configurations, operations, use, {i: logits(w, task.test[i][0]) for i, w in models.items()}
    )


def run_found(
    task: Task, descent: Descent, operations: int, warmup: int, by_updates: bool = False
) -> Modules:
    """One device; one W_o for all until round `warmup`, then one for each cluster of
    its changes, less what all changes have in common, or of the updates of whole models.
    """
    configuration, modules, use = base(task.start[0]), [head(task.start[0])], dict[int, int]()
    for number, cohort in enumerate(task.rounds, 1):
        use |= {
            i: chosen(task, i, configuration, modules, use) for i in cohort if use and task.size(i)
        }
        sent = {i: {**configuration, **modules[use.get(i, 0)]} for i in cohort}
        trained = {
            i: descent.run(sent[i], batches, on(task, i)) for i, (batches,) in cohort.items()
        }
        (configuration,) = averages(
            {i: base(w) for i, w in trained.items()},
            dict.fromkeys(cohort, 0),
            [configuration],
            task,
        )
        heads = {i: head(w) for i, w in trained.items() if task.size(i)}
        if not use and number >= warmup:
            update = {i: flat(trained[i]) - flat(sent[i]) for i in heads}
            change = {i: flat(w) - flat(modules[0]) for i, w in heads.items()}
            common = sum(change.values()) / len(change)
            less = {i: c - common for i, c in change.items()}
            use = clusters(update if by_updates else less, operations, task)
            modules = modules * operations
        modules = averages(heads, {i: use.get(i, 0) for i in heads}, modules, task)
    own = {i: modules[chosen(task, i, configuration, modules, use)] for i in task.clients}
    answers = {i: logits({**configuration, **own[i]}, task.test[i][0]) for i in task.clients}
    return Modules([configuration], modules, use, answers)


def chosen(
    task: Task, client: int, configuration: Params, modules: list[Params], use: dict[int, int]
) -> int:
    """The use that is known, or that with the lowest loss on the client's training data."""
    x, y = task.train[client]
    return use.get(
        client,
        int(np.argmin([losses(logits({**configuration, **m}, x), y).sum() for m in modules])),
    )


def flat(w: Params) -> Array:
    return np.concatenate([v.ravel() for v in w.values()])


def clusters(changes: dict[int, Array], count: int, task: Task) -> dict[int, int]:
    """Complete linkage: join the two clusters whose farthest members are nearest, by the cosine,
    until few are left.

    The cluster with the most examples is number 0.
    """
    groups = [[i] for i in changes]

    def distance(pair: tuple[list[int], list[int]]) -> float:
        return max(1 - cosine(changes[i], changes[j]) for i in pair[0] for j in pair[1])

    while len(groups) > count:
        first, second = min(combinations(groups, 2), key=distance)
        groups = [sorted(first + second) if g is first else g for g in groups if g is not second]
    groups.sort(key=lambda members: -sum(task.size(i) for i in members))
    return {i: number for number, members in enumerate(groups) for i in members}


def cosine(a: Array, b: Array) -> float:
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))
