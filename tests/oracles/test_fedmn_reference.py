"""FedMN's released code: rounds apart and in turn, against a plain loop."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedblocks.core.errors import UserError
from fedblocks.methods.fedmn.reference import FedMNReference

from . import definition
from . import fedmn_reference as oracle
from .definition import Course
from .harness import (
    BATCH,
    COHORTS,
    ENGINES,
    SEED,
    SIZES,
    Experiment,
    agrees,
    draw,
    evaluate,
    federation,
    mlp_net,
    play,
    same_evaluations,
    task_of,
)
from .harness import _same as same
from .plain import Outcome, Task

N = (2, 3, 2)
GATES = 2 * 3 + 3 * 2 + 2 + 2  # edges, outputs, and two for encoders
LR = 0.1


def made(**options: object) -> FedMNReference:
    small = {
        "summary_width": 4,
        "label_width": 3,
        "dropout": 0.0,
        "widths": (6, 5),
        "modules": N,
        "spread": 0.4,
    }
    return FedMNReference(mlp_net(), lr=LR, epochs=2, batch_size=BATCH, **small, **options)


def noise(round: int, client: int, purpose: str, step: int | None = None) -> Tensor:
    place = (SEED, round, client, purpose)
    of_round = definition.client_key(place)
    key = of_round if step is None else definition.fold(definition.step_key(place, 0, step), 2**22)
    return torch.from_numpy(definition.uniform(key, GATES))


def expected(
    method: FedMNReference,
    task: Task,
    turns: dict[tuple[int, int], int],
    rounds: int,
    in_turn: bool,
) -> Outcome:
    """`turns` says in which of the library's rounds a client's turn is, `rounds` how
    many there are.
    """
    server = Experiment.of(method, federation(), SEED).start().server
    model = {
        name: {k: v[0] for k, v in server[name].items()}
        for name in ("encoder", "module.2", "output")
    }
    route = method.router.net.init(definition.key(SEED, "init", 0))
    steps = {
        (t, i): len(actual)
        for t, cohort in enumerate(task.rounds)
        for i, (actual,) in cohort.items()
    }
    drawn = {
        (t, i): [noise(turns[t, i], i, "train", s) for s in range(1, n + 1)]
        for (t, i), n in steps.items()
    }
    last = {i: noise(rounds, i, "adapt") for i in task.clients}
    return oracle.run(task, model, route, drawn, last, N, LR, in_turn)


@pytest.mark.parametrize("engine", ENGINES)
def test_two_rounds_apart_are_those_of_the_released_code_without_its_order(engine: str) -> None:
    method = made()
    task = task_of(method)
    turns = {(t, i): t for t, cohort in enumerate(task.rounds) for i in cohort}
    agrees(method, expected(method, task, turns, len(COHORTS), in_turn=False), ENGINES[engine])


def test_one_client_a_round_in_turn_is_the_released_code() -> None:
    method, clients, passes = made(client_order="sequential"), len(SIZES), 2
    turns = {(p, i): p * clients + i for p in range(passes) for i in range(clients)}

    def order(p: int, i: int) -> list[list]:
        return draw(method, [Course(epochs=2)], SIZES[i], (SEED, turns[p, i], i, "train"))

    task = replace(
        task_of(method), rounds=[{i: order(p, i) for i in range(clients)} for p in range(passes)]
    )
    outcome = expected(method, task, turns, passes * clients, in_turn=True)
    engine = ENGINES["sequential"]
    experiment, state = play(
        method, engine, cohorts=tuple((i,) for _ in range(passes) for i in range(clients))
    )
    for name, (slot,) in outcome.server.items():
        same(name, {k: v[0] for k, v in state.server[name].items()}, slot)
    found = evaluate(experiment, state, range(clients), engine)
    same_evaluations(found, outcome.logits, experiment.data)


def test_clients_in_turn_refuse_a_cohort_of_two() -> None:
    with pytest.raises(UserError, match="one client a round, not 2"):
        play(made(client_order="sequential"), ENGINES["sequential"], cohorts=((0, 1),))
