"""Data that are gone through in pieces: 512 examples of an evaluation, 256 of FedMN's router.
Sizes lie on both sides of the borders.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedblocks.data.federation import Federation
from fedblocks.data.rows import Rows
from fedblocks.engines.round import evaluate_parts
from fedblocks.methods.fedmn.method import FedMN
from fedblocks.methods.fedper import FedPer

from . import fedmn, fedper
from .definition import Course
from .harness import (
    CLASSES,
    ENGINES,
    FEATURES,
    _numbered,
    agrees,
    initial,
    mlp,
    mlp_net,
    plans,
    play,
    same_evaluations,
)
from .plain import Descent, Task, logits
from .test_fedmn import PRINTED, SMALL, drawn_for, started

TRAIN = (600, 257, 3, 256, 0)
TEST = (1100, 512, 513, 5, 0)
COHORTS = ((0, 1, 2, 3, 4),)


def long_federation() -> Federation:
    draw = np.random.Generator(np.random.PCG64(13))
    train, rows = _numbered(TRAIN, 0)
    test, rows = _numbered(TEST, rows)
    x, y = draw.standard_normal((rows, FEATURES)), draw.integers(0, CLASSES, rows)
    # the last rows of a client look like no others
    for own in (*train, *test):
        y[own[-2:]], x[own[-2:]] = 0, 5.0
    order = np.argsort(draw.random(rows))  # a client's rows lie anywhere
    place = np.argsort(order)
    parts = [Rows.of([place[own] for own in part]) for part in (train, test)]
    return Federation(
        torch.from_numpy(x[order]),
        torch.from_numpy(y[order]),
        parts[0],
        Rows.none(len(TRAIN)),
        parts[1],
        classes=CLASSES,
    )


def long_task(method: FedPer | FedMN, *courses: list[Course]) -> Task:
    data = long_federation()
    x, y = data.x.numpy(), data.y.numpy()
    return Task(
        [initial(mlp, 0)],
        [(x[rows], y[rows]) for rows in data.train],
        [(x[rows], y[rows]) for rows in data.test],
        **plans(method, TRAIN, *courses, cohorts=COHORTS),
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_an_evaluation_in_pieces_counts_every_example_once(engine: str) -> None:
    method = FedPer(mlp_net(), lr=0.1, batch_size=100)
    task = long_task(method, [Course()], [], [Course()])
    outcome = fedper.run(task, Descent(0.1))
    agrees(method, outcome, ENGINES[engine], long_federation(), COHORTS)
    experiment, state = play(method, ENGINES[engine], long_federation(), COHORTS)
    parts = ("train", "test")
    seen = evaluate_parts(experiment, state, range(len(TRAIN)), ENGINES[engine], parts)
    heads = {i: blocks["head"] for i, blocks in outcome.private.items()}
    for part, pairs in zip(parts, (task.train, task.test), strict=True):
        answers = {
            i: logits({**outcome.server["body"][0], **heads[i]}, x)
            for i, (x, _) in enumerate(pairs)
        }
        same_evaluations(seen.scores[part], {"personal": answers}, experiment.data, part)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_router_that_looks_in_pieces_sees_every_example_once(engine: str) -> None:
    # soft gates show all that the router says; 300: more than one client has, fewer than another
    own = {"router_samples": 300, "gate_mode": "soft", "eval_gate": "soft"}
    method = FedMN(mlp_net(), lr=0.1, batch_size=200, **SMALL, **PRINTED, **own)
    task = long_task(method, [Course()], [], [])
    outcome = fedmn.run(
        task, started(method), drawn_for(method, task), fedmn.Choices(0.1, soft=True)
    )
    agrees(method, outcome, ENGINES[engine], long_federation(), COHORTS)
