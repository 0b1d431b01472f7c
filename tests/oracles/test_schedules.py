"""Learning rates that follow the round, against plain loops: the value at t in round t, and at T
in what follows T rounds.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fedblocks.core.schedules import Exponential, Milestones
from fedblocks.methods import METHODS

from . import module_methods, module_pfedmb
from .definition import Course
from .harness import BATCH, ENGINES, SEED, SIZES, agrees, mlp, mlp_net, plans, task_of
from .module_methods import Rate, Setting
from .modules import Loop
from .plain import Outcome

# of the library, and written out: a factor at rounds 1 and 3; from 0.2 to 0.02 in three rounds
DROPS = Milestones(0.2, (1, 3), 0.5)
FALLS = Exponential(0.2, 0.02, 3)
DROPPING = (0.2, 0.1, 0.1, 0.05, 0.05)
FALLING = (0.2, 0.2 * 0.1 ** (1 / 3), 0.2 * 0.1 ** (2 / 3), 0.02, 0.02)
SCHEDULES: dict[str, tuple[Any, Rate]] = {
    "milestones": (DROPS, DROPPING.__getitem__),
    "exponential": (FALLS, FALLING.__getitem__),
}
COHORTS = ((0, 1, 2, 3, 4), (1, 3, 4), (0, 2), (0, 1, 2, 3))
TWICE = Course(epochs=2)
LITERAL: dict[str, Any] = {"start": "independent", "lr_scale": "printed"}  # pFedMB as printed
# options; courses in a round, before an evaluation, when a client joins
CASES: dict[str, tuple[dict[str, Any], tuple[list[Course], ...]]] = {
    "fedavg": ({}, ([TWICE], [], [])),
    "fedavg_ft": ({"tune_epochs": 2}, ([TWICE], [TWICE], [TWICE])),
    "fedper": ({}, ([TWICE], [], [TWICE])),
    "ditto": ({"personal_lr": DROPS}, ([TWICE, TWICE], [], [TWICE])),
    "pfedmb": ({"branches": 2, "alpha_lr": DROPS, **LITERAL}, ([TWICE, TWICE],) * 3),
}


def expected(name: str, setting: Setting) -> Outcome:
    match name:
        case "fedper":
            return module_methods.fedper(setting, "4.")
        case "ditto":
            return module_methods.ditto(setting, 1.0, DROPPING.__getitem__)
        case "pfedmb":
            return module_pfedmb.run(setting, ("0", "2", "4"), 2, DROPPING.__getitem__)
        case _:
            return module_methods.fedavg(setting)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", CASES)
def test_every_round_has_its_own_learning_rate(name: str, schedule: str, engine: str) -> None:
    own, courses = CASES[name]
    lr, rate = SCHEDULES[schedule]
    method = METHODS[name](net=mlp_net(), lr=lr, epochs=2, batch_size=BATCH, **own)
    task = replace(task_of(method), **plans(method, SIZES, *courses, cohorts=COHORTS))
    outcome = expected(name, Setting(task, Loop(mlp), SEED, rate))
    agrees(method, outcome, ENGINES[engine], cohorts=COHORTS)
