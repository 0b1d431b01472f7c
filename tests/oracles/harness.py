"""Runs the library on the oracles' federation and compares. For a new method: an oracle `run(task,
...) -> Outcome`, and a line in `CASES` of test_oracles.py (or `agrees(method, run(task_of(method),
...), engine)` for another net).

pytest imports these files as a package, so that `from .harness import ...` works without an
`__init__.py`.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from fedblocks.core.method import Method
from fedblocks.core.net import Net
from fedblocks.core.random import derive
from fedblocks.core.state import State
from fedblocks.data.federation import Federation
from fedblocks.data.rows import Rows
from fedblocks.engines.batching import Draw, batches
from fedblocks.engines.round import Engine, Experiment, evaluate, run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised

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


def task_of(method: Method, slots: int = 4, sizes: tuple[int, ...] = SIZES) -> Task:
    """The oracles' view of the same federation: initial models, data and batches."""
    data = federation(sizes=sizes)
    x, y = data.x.numpy(), data.y.numpy()
    start = [_numpy(method.net.init(derive(SEED, "init", slot))) for slot in range(slots)]
    return Task(
        start,
        train=[(x[rows], y[rows]) for rows in data.train],
        test=[(x[rows], y[rows]) for rows in data.test],
        rounds=[
            {i: _batches(method, t, i, sizes[i]) for i in cohort}
            for t, cohort in enumerate(COHORTS)
        ],
        adapting={
            i: _batches(method, len(COHORTS), i, sizes[i], adapting=True) for i in range(len(sizes))
        },
    )


def _batches(
    method: Method, round: int, client: int, count: int, adapting: bool = False
) -> list[Batches]:
    phases = method.adaptation() if adapting else method.phases()
    purpose = "adapt" if adapting else "train"
    return [
        batches(method, phase, number, count, Draw(SEED, round, client, purpose))
        for number, phase in enumerate(phases)
    ]


def _numpy(params: dict[str, Tensor]) -> Params:
    return {name: value.numpy() for name, value in params.items()}


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


def agrees(method: Method, expected: Outcome, engine: Engine) -> None:
    """Server slots, private blocks and evaluations of the library are those of the oracle."""
    experiment, state = play(method, engine)
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
    _same_evaluations(
        evaluate(experiment, state, range(len(SIZES)), engine), expected, experiment.data
    )


def _same(what: str, found: dict[str, Tensor], expected: Params) -> None:
    assert found.keys() == expected.keys(), what
    for name, value in expected.items():
        assert found[name].dtype == torch.float64, f"{name} of {what}"
        np.testing.assert_allclose(
            found[name].numpy(), value, rtol=0, atol=TOLERANCE, err_msg=f"{name} of {what}"
        )


def _same_evaluations(
    found: dict[str, dict[int, tuple[float, float, float]]], expected: Outcome, data: Federation
) -> None:
    assert found.keys() == expected.logits.keys()
    for view, by_client in expected.logits.items():
        for client, z in by_client.items():
            labels = data.y.numpy()[data.test[client]]
            right, scored, loss = counts(z, labels)
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
