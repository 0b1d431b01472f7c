"""The metrics that a run records are scikit-learn's of the models' outputs, to 1e-9: of each
client, over all clients, on both engines, with padding, ties, absent classes and class weights.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

import fedblocks as fb
from fedblocks.core.task_kinds import KINDS
from fedblocks.data.rows import Rows
from fedblocks.export.personal import personal

from .scikit import metrics, of_classes, of_labels, of_numbers

CLIENTS, STEPS = 5, 4
SIZES = (60, 45, 30, 700, 30)  # the test rows of 700 are scored in more than one piece
Wanted = Callable[[str, torch.Tensor, torch.Tensor], float]


def inputs(*shape: int) -> tuple[torch.Tensor, np.ndarray, np.random.Generator]:
    """In double precision; every second row is like the one before it, so that scores tie."""
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(sum(SIZES), *shape)))
    x[1::2] = x[:-1:2]
    return x, np.repeat(np.arange(CLIENTS), SIZES), rng


def with_classes(task: fb.Task) -> fb.Federation:
    """Client 1 has classes 0 and 1 alone, client 2 nothing but class 2."""
    x, user, rng = inputs(5)
    y = torch.from_numpy(rng.integers(0, 4, len(user)))
    y[user == 1], y[user == 2] = y[user == 1] % 2, 2
    return federation(x, y, user, 4, task)


def with_steps(task: fb.Task) -> fb.Federation:
    """Sequences of 1 to 4 steps, padded with IGNORE; of client 2 nothing is known."""
    x, user, rng = inputs(STEPS, 5)
    y = torch.from_numpy(rng.integers(0, 3, (len(user), STEPS)))
    y[
        torch.arange(STEPS) >= torch.from_numpy(rng.integers(1, STEPS + 1, len(user)))[:, None]
    ] = -100
    y[user == 2] = -100
    y[user == 1] = torch.where(y[user == 1] > 0, 0, y[user == 1])  # class 0 alone
    return federation(x, y, user, 3, task)


def with_labels(task: fb.Task) -> fb.Federation:
    """Client 1 lacks label 0, client 2 has label 1 everywhere."""
    x, user, rng = inputs(5)
    y = torch.from_numpy((rng.random((len(user), 3)) < 0.4).astype(float))
    y[user == 1, 0], y[user == 2, 1] = 0, 1
    return federation(x, y, user, 3, task)


def with_numbers(task: fb.Task) -> fb.Federation:
    """Client 2 has the same number everywhere."""
    x, user, rng = inputs(5)
    y = x[:, :2] + torch.from_numpy(rng.normal(size=(len(user), 2)))
    y[user == 2] = 1.5
    return federation(x, y, user, 2, task)


def federation(
    x: torch.Tensor, y: torch.Tensor, user: np.ndarray, outputs: int, task: fb.Task
) -> fb.Federation:
    """Of each client, every fourth row trains, the next validates, the rest tests."""
    rows = [np.flatnonzero(user == c) for c in range(CLIENTS)]
    parts = [[own[own % 8 < 2] for own in rows], [own[own % 8 == 2] for own in rows]]
    test = [own[own % 8 > 2] for own in rows]
    return fb.Federation(x, y, *map(Rows.of, (*parts, test)), outputs, task=task)


TASKS: dict[str, tuple[Callable[[fb.Task], fb.Federation], Wanted, int]] = {
    "classification": (with_classes, of_classes, 4),
    "sequence-labelling": (with_steps, of_classes, 3),
    "next-token": (with_steps, of_classes, 3),
    "multi-label": (with_labels, of_labels, 3),
    "regression": (with_numbers, of_numbers, 2),
}


def net(outputs: int) -> fb.Net:
    layers = lambda: nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, outputs))
    return fb.Net.of(layers, dtype=torch.float64)


def outputs_of(
    run: fb.RunResult, method: fb.Method, data: fb.Federation
) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
    """The outputs on each client's test rows and the targets, a row for each label of classes; of
    those clients that have any.
    """
    found = {}
    for client in range(CLIENTS):
        rows = torch.from_numpy(np.array(data.test[client]))
        outputs, y = personal(run, client, method, data).predict(data.x[rows]), data.y[rows]
        if data.task.of_classes and y.dim() > 1:
            outputs, y = outputs.flatten(0, -2), y.flatten()
        if data.task.scored(y).any():
            found[client] = (outputs, y)
    return found


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
@pytest.mark.parametrize("kind", TASKS)
def test_recorded_metrics_are_scikit_learns_of_the_models_outputs(kind: str, engine: str) -> None:
    make, wanted, outputs = TASKS[kind]
    names = tuple(dict.fromkeys((*KINDS[kind].metrics, *KINDS[kind].other_metrics)))
    data, method = make(fb.Task(kind, metrics=names)), fb.FedPer(net(outputs), lr=0.2)
    run = fb.run(method, data, 2, "run", engine=engine)  # type: ignore[arg-type]
    said = outputs_of(run, method, data)
    scored = {client: int(data.task.scored(y).sum()) for client, (_, y) in said.items()}
    for name in names:
        each = {client: wanted(name, *pair) for client, pair in said.items()}
        each = {client: value for client, value in each.items() if not np.isnan(value)}
        assert run.scores(name) == pytest.approx(each, abs=1e-9), name
        summary, values = run.summary(metric=name), [*each.values()]
        weighted = np.average(values, weights=[scored[client] for client in each])
        assert summary["clients"] == len(each) >= 2
        assert summary["mean"] == pytest.approx(np.mean(values), abs=1e-9)
        assert summary["weighted"] == pytest.approx(weighted, abs=1e-9)


def test_counted_metrics_over_all_are_scikit_learns_of_all_examples_together() -> None:
    data, method = with_classes(fb.Task()), fb.FedPer(net(4), lr=0.2)
    run = fb.run(method, data, 2, "classes")
    said, y = (torch.cat(own) for own in zip(*outputs_of(run, method, data).values(), strict=True))
    assert run.summary()["weighted"] == pytest.approx(
        metrics().accuracy_score(y, said.argmax(-1)), abs=1e-9
    )
    loss = metrics().log_loss(y, torch.softmax(said, -1), labels=range(4))
    assert run.summary(metric="loss")["weighted"] == pytest.approx(loss, abs=1e-9)
    data, method = with_numbers(fb.Task("regression")), fb.FedPer(net(2), lr=0.2)
    run = fb.run(method, data, 2, "numbers")
    said, y = (torch.cat(own) for own in zip(*outputs_of(run, method, data).values(), strict=True))
    error = metrics().mean_absolute_error(y, said)
    assert run.summary(metric="mae")["weighted"] == pytest.approx(error, abs=1e-9)


@pytest.mark.parametrize("kind", ["classification", "sequence-labelling"])
def test_class_weights_weigh_the_loss_as_scikit_learn_weighs_examples(kind: str) -> None:
    make, _, outputs = TASKS[kind]
    weights = np.array([0.5, 2.0, 0.25, 1.0][:outputs])
    data, method = make(fb.Task(kind, class_weights=weights.tolist())), fb.FedPer(net(outputs))
    run = fb.run(method, data, 1, "run")
    wanted = {}
    for client, (logits, labels) in outputs_of(run, method, data).items():
        y = labels[labels != fb.IGNORE].numpy()
        shares = torch.softmax(logits[labels != fb.IGNORE], -1).numpy()
        own = {"labels": range(outputs), "sample_weight": weights[y], "normalize": False}
        wanted[client] = metrics().log_loss(y, shares, **own) / len(y)
    assert run.scores("loss") == pytest.approx(wanted, abs=1e-9)
