"""Runs the library on the oracles' federation and compares. For a new method: an oracle `run(task,
...) -> Outcome`, and a line in `CASES` of test_oracles.py (or `agrees(method, run(task_of(method),
...), engine)` for another net).

pytest imports these files as a package, so that `from .harness import ...` works without an
`__init__.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedblocks.core.method import Method
from fedblocks.core.net import Net
from fedblocks.core.phases import Phase
from fedblocks.core.state import State
from fedblocks.data.federation import Federation
from fedblocks.data.rows import Rows
from fedblocks.engines.round import Engine, Experiment, evaluate, run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised

from . import definition
from .autograd import IGNORE
from .definition import Course
from .plain import Array, Batches, Outcome, Params, Task, losses

SEED = 7
# training examples: client 3 has less than a batch, client 4 has nothing
SIZES = (23, 9, 40, 3, 0, 17)
TEST_SIZES = (11, 6, 9, 4, 5, 8)
# client 5 never takes part, clients 0 and 2 are absent in the second round
COHORTS = ((0, 1, 2, 3, 4), (1, 3, 4))
FEATURES, CLASSES, BATCH = 5, 4, 8
TOLERANCE = 1e-10
ENGINES: dict[str, Engine] = {"sequential": Sequential(), "vectorised": Vectorised(chunk=2)}


def mlp() -> nn.Module:
    """The network of plain.py."""
    return nn.Sequential(
        nn.Linear(FEATURES, 7), nn.ReLU(), nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, CLASSES)
    )


def mlp_net() -> Net:
    return Net.of(mlp, dtype=torch.float64)


def federation(shape: tuple[int, ...] = (FEATURES,), sizes: tuple[int, ...] = SIZES) -> Federation:
    """Clients of unequal sizes; those with an odd number call the classes otherwise.
    Inputs are float64.
    """
    draw = np.random.Generator(np.random.PCG64(3))
    train, rows = _numbered(sizes, 0)
    test, rows = _numbered(TEST_SIZES[: len(sizes)], rows)
    x = draw.standard_normal((rows, *shape))
    y = draw.integers(0, CLASSES, rows)
    # classes that can be told apart
    x.reshape(rows, -1)[np.arange(rows), y % x.reshape(rows, -1).shape[1]] += 2
    for client in range(1, len(sizes), 2):
        y[train[client]], y[test[client]] = (
            (y[train[client]] + 1) % CLASSES,
            (y[test[client]] + 1) % CLASSES,
        )
    parts = Rows.of(train), Rows.none(len(sizes)), Rows.of(test)
    return Federation(torch.from_numpy(x), torch.from_numpy(y), *parts, classes=CLASSES)


def _numbered(sizes: tuple[int, ...], first: int) -> tuple[list[np.ndarray], int]:
    ends = first + np.cumsum(sizes)
    return [np.arange(end - size, end) for end, size in zip(ends, sizes)], int(ends[-1])


def task_of(
    method: Method,
    slots: int = 4,
    sizes: tuple[int, ...] = SIZES,
    courses: Sequence[Course] | None = None,
    adapting: Sequence[Course] | None = None,
    joining: Sequence[Course] | None = None,
) -> Task:
    """The oracles' view of the same federation: initial models, data and batches.

    A test that gives the courses of training, adaptation and joining takes nothing from the
    method's phases; else the courses are those of the phases.
    """
    data = federation(sizes=sizes)
    x, y = data.x.numpy(), data.y.numpy()
    return Task(
        [initial(method.net.make, slot) for slot in range(slots)],
        train=[(x[rows], y[rows]) for rows in data.train],
        test=[(x[rows], y[rows]) for rows in data.test],
        **plans(method, sizes, courses, adapting, joining),
    )


def initial(make: Callable[[], nn.Module], slot: int) -> Params:
    """A module at the start of a slot, in double precision."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(definition.key(SEED, "init", slot))
        module = make().double()
    tensors = module.state_dict().items()
    return {k: v.detach().numpy() for k, v in tensors if not k.endswith("num_batches_tracked")}


def plans(
    method: Method,
    sizes: tuple[int, ...],
    courses: Sequence[Course] | None = None,
    adapting: Sequence[Course] | None = None,
    joining: Sequence[Course] | None = None,
    cohorts: Sequence[tuple[int, ...]] = COHORTS,
) -> dict[str, Any]:
    """Everybody's batches: in the rounds, before the evaluation, and as a client that joins."""
    clients, last = range(len(sizes)), len(cohorts)
    train = courses_of(method.phases()) if courses is None else courses
    adapt = courses_of(method.adaptation()) if adapting is None else adapting
    join = courses_of(method.joining()) if joining is None else joining
    drawn = lambda own, t, i, purpose: draw(method, own, sizes[i], (SEED, t, i, purpose))
    return {
        "rounds": [
            {i: drawn(train, t, i, "train") for i in cohort} for t, cohort in enumerate(cohorts)
        ],
        "adapting": {i: drawn(adapt, last, i, "adapt") for i in clients},
        "joining": {i: drawn(join, last, i, "join") for i in clients},
    }


def courses_of(phases: Sequence[Phase]) -> list[Course]:
    return [Course(phase.epochs, phase.on, phase.steps) for phase in phases]


def draw(
    method: Method, courses: Sequence[Course], count: int, place: definition.Place
) -> list[Batches]:
    """One client's batches, course by course."""
    return [
        definition.batches(course, phase, count, method.batch_size, method.drop_last, place)
        for phase, course in enumerate(courses)
    ]


def play(
    method: Method,
    engine: Engine,
    data: Federation | None = None,
    cohorts: tuple[tuple[int, ...], ...] = COHORTS,
    start: State | None = None,
) -> tuple[Experiment, State]:
    """Some rounds of the library; nobody may be refused."""
    experiment = Experiment.of(method, data or federation(), SEED)
    state = start or experiment.start()
    for cohort in cohorts:
        state, report = run_round(experiment, state, cohort, engine)
        assert report.refusals == []
    return experiment, state


def agrees(
    method: Method,
    expected: Outcome,
    engine: Engine,
    data: Federation | None = None,
    cohorts: tuple[tuple[int, ...], ...] = COHORTS,
) -> None:
    """Server slots, private blocks and evaluations of the library are those of the oracle."""
    experiment, state = play(method, engine, data, cohorts)
    same_state(state, expected)
    clients = range(experiment.data.clients)
    same_evaluations(evaluate(experiment, state, clients, engine), expected.logits, experiment.data)
    if expected.joined:
        joined = evaluate(experiment, state, clients, engine, joining=True)
        same_evaluations(joined, expected.joined, experiment.data)


def same_state(state: State, expected: Outcome) -> None:
    """What the server and the clients hold."""
    assert state.server.keys() == expected.server.keys()
    for block, slots in expected.server.items():
        for slot, params in enumerate(slots):
            _same(
                f"slot {slot} of {block}",
                {k: v[slot] for k, v in state.server[block].items()},
                params,
            )
    assert {i: set(blocks) for i, blocks in state.private.items()} == {
        i: set(b) for i, b in expected.private.items()
    }
    for client, blocks in expected.private.items():
        for block, params in blocks.items():
            _same(f"{block} of client {client}", state.private[client][block], params)


def _same(what: str, found: dict[str, Tensor], expected: Params) -> None:
    assert found.keys() == expected.keys(), what
    for name, value in expected.items():
        assert found[name].dtype == torch.float64, f"{name} of {what}"
        np.testing.assert_allclose(
            found[name].numpy(), value, rtol=0, atol=TOLERANCE, err_msg=f"{name} of {what}"
        )


def same_evaluations(
    found: dict[str, dict[int, tuple[float, float, float]]],
    expected: dict[str, dict[int, Array]],
    data: Federation,
    part: str = "test",
) -> None:
    """Correct answers, scored labels and sums of losses on a part of the clients' data."""
    assert found.keys() == expected.keys()
    for view, by_client in expected.items():
        for client, z in by_client.items():
            labels = data.y.numpy()[getattr(data, part)[client]]
            is_scored = labels != IGNORE
            right, scored, loss = counts(z[is_scored], labels[is_scored])
            message = f"{view} of client {client}"
            assert found[view][client][:2] == (right, scored), message
            assert abs(found[view][client][2] - loss) < TOLERANCE * max(1, loss), message


def counts(z: Array, y: np.ndarray) -> tuple[float, float, float]:
    """Correct answers, answers, sum of cross-entropies."""
    return float((z.argmax(1) == y).sum()), float(len(y)), float(losses(z, y).sum())


def apart(a: State, b: State) -> float:
    """The largest difference between two states, server and private."""
    assert a.server.keys() == b.server.keys() and a.private.keys() == b.private.keys()
    pairs = [(a.server[n][k], b.server[n][k]) for n in a.server for k in a.server[n]]
    pairs += [
        (a.private[i][n][k], b.private[i][n][k])
        for i in a.private
        for n in a.private[i]
        for k in a.private[i][n]
    ]
    return max(float((x - y).abs().max()) for x, y in pairs if x.numel())
