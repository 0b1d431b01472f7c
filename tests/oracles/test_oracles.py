"""Every method against its paper: two rounds of the library equal two rounds of the
algorithm box, in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedblocks.core.method import Method
from fedblocks.core.optimizers import SGD
from fedblocks.methods import METHODS
from tests.representatives import case_of

from . import ditto, fedavg, fedavg_ft, fedem, fedper, fedprox, ifca, local, pfedmb
from .definition import Course
from .harness import BATCH, COHORTS, ENGINES, SIZES, agrees, federation, mlp_net, task_of
from .plain import Descent, Outcome, Task, logits, losses, slope

Oracle = Callable[[Task, Descent], Outcome]

OPTIMIZERS = {
    "sgd": SGD(),
    "momentum and decay": SGD(momentum=0.9, weight_decay=0.05),
    "nesterov": SGD(momentum=0.8, nesterov=True, weight_decay=0.02),
}
LR = {"sgd": 0.2, "momentum and decay": 0.05, "nesterov": 0.05}

# Method's own hyper-parameters, and its oracle given the local descent.
CASES: dict[str, tuple[dict[str, object], Oracle]] = {
    "local": ({}, local.run),
    "fedavg": ({}, fedavg.run),
    "fedprox": ({"strength": 0.7}, lambda t, d: fedprox.run(t, d, mu=0.7)),
    "fedavg_ft": (
        {"tune_epochs": 3, "tune_lr": 0.03},
        lambda t, d: fedavg_ft.run(t, d, tuning=replace(d, lr=0.03)),
    ),
    "fedper": ({}, fedper.run),
    "ditto": (
        {"strength": 0.6, "personal_epochs": 3, "personal_lr": 0.04},
        lambda t, d: ditto.run(t, d, personal=replace(d, lr=0.04), strength=0.6),
    ),
    "ifca": ({"clusters": 4}, lambda t, d: ifca.run(t, d, clusters=4)),
    "ifca from updates": (
        {"clusters": 3, "start": "updates"},
        lambda t, d: ifca.run_from_updates(t, d, clusters=3),
    ),
    "fedem": ({"components": 3}, lambda t, d: fedem.run(t, d, components=3)),
    "fedem as one net": (
        {"components": 3, "lr_scale": "mixture"},
        lambda t, d: fedem.run(t, d, components=3, as_one_net=True),
    ),
    "pfedmb": (
        {"branches": 3, "alpha_lr": 0.9, "alpha_epochs": 3, "lr_scale": "printed"},
        lambda t, d: pfedmb.run(t, d, branches=3, alpha_lr=0.9),
    ),
}


# What a client goes through: in a round; before an evaluation; when it joins.
TWICE, THRICE = Course(epochs=2), Course(epochs=3)
COURSES: dict[str, tuple[list[Course], list[Course], list[Course]]] = {
    "local": ([TWICE], [], [TWICE]),
    "fedavg": ([TWICE], [], []),
    "fedprox": ([TWICE], [], []),
    "fedavg_ft": ([TWICE], [THRICE], [THRICE]),
    "fedper": ([TWICE], [], [TWICE]),
    "ditto": ([THRICE, TWICE], [], [THRICE]),
    "ifca": ([TWICE], [], []),
    "ifca from updates": ([TWICE], [], []),
    "fedem": ([TWICE], [], []),
    "fedem as one net": ([TWICE], [], []),
    "pfedmb": ([THRICE, TWICE], [THRICE, TWICE], [THRICE, TWICE]),
}


def made(name: str, optimizer: str) -> tuple[Method, Descent]:
    """A method, and the same local optimizer for its oracle."""
    sgd, lr = OPTIMIZERS[optimizer], LR[optimizer]
    own, _ = CASES[name]
    method = METHODS[name.split()[0]](
        net=mlp_net(), lr=lr, epochs=2, batch_size=BATCH, optimizer=sgd, **own
    )
    return method, Descent(lr, sgd.momentum, sgd.nesterov, sgd.weight_decay)


# one step of an optimizer is the same in every method, so one method stands for all of them
PAIRS = [
    case_of(name, optimizer, always=optimizer == "momentum and decay" or name == "fedavg")
    for name in CASES
    for optimizer in OPTIMIZERS
]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("name", "optimizer"), PAIRS)
def test_two_rounds_are_those_of_the_paper(name: str, optimizer: str, engine: str) -> None:
    """Every method with every optimizer in `make test-rest`."""
    method, descent = made(name, optimizer)
    train, adapt, join = COURSES[name]
    task = task_of(method, courses=train, adapting=adapt, joining=join)
    agrees(method, CASES[name][1](task, descent), ENGINES[engine])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["fedavg", "fedem", "pfedmb"])
def test_a_last_batch_that_is_not_full_is_left_out_on_request(name: str, engine: str) -> None:
    """Unless it is the only one, as client 3's; the client counts with all its examples."""
    method, descent = made(name, "sgd")
    method = replace(method, drop_last=True)
    train, adapt, join = COURSES[name]
    task = task_of(method, courses=train, adapting=adapt, joining=join)
    agrees(method, CASES[name][1](task, descent), ENGINES[engine])


def test_the_oracles_gradient_is_the_slope_of_its_loss() -> None:
    task = task_of(made("fedavg", "sgd")[0])
    (x, y), w, weights = task.train[0], task.start[0], np.linspace(0.1, 2, SIZES[0])
    actual = slope(w, x, y, weights)
    for name, value in w.items():
        for place in [(0,) * value.ndim, tuple(n - 1 for n in value.shape)]:
            step = np.zeros_like(value)
            step[place] = 1e-6
            up, down = (
                (weights * losses(logits({**w, name: value + s}, x), y)).mean()
                for s in (step, -step)
            )
            assert (up - down) / 2e-6 == pytest.approx(actual[name][place], abs=1e-8)


def test_the_task_is_hard_enough_to_tell_methods_apart() -> None:
    """One client smaller than a batch, one empty, absences; models and clients that are
    really different.
    """
    method, descent = made("ifca", "sgd")
    task = task_of(method)
    assert 0 < min(s for s in SIZES if s) < BATCH and 0 in SIZES
    assert set(COHORTS[1]) < set(COHORTS[0]) < set(range(len(SIZES)))
    chosen = {ifca.choice(task.start, task, i) for i in COHORTS[0] if SIZES[i]}
    assert 1 < len(chosen) < len(task.start)  # several clusters are trained, and one is not
    server = {
        name: CASES[name][1](task_of(made(name, "sgd")[0]), descent).server
        for name in ("fedavg", "fedprox")
    }
    gap = max(
        np.abs(server["fedavg"]["model"][0][k] - v).max()
        for k, v in server["fedprox"]["model"][0].items()
    )
    assert gap > 1e-3
    assert federation().x.dtype == torch.float64
