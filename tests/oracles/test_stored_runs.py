"""A run with checkpoints in every second round and several shards of clients' state: straight, and
broken off and resumed, it ends where the oracle ends. The oracle draws cohorts and unseen clients
itself.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedblocks as fb
from fedblocks.core import private_state
from fedblocks.core.state import State
from fedblocks.data.federation import Federation
from fedblocks.data.rows import Rows
from fedblocks.methods import METHODS
from fedblocks.methods.ditto import Ditto
from fedblocks.methods.fedper import FedPer
from fedblocks.runs.storage import checkpoint, shards
from fedblocks.runs.storage.folder import RunFolder
from fedblocks.runs.storage.states import state_of

from . import definition, ditto, fedper
from .definition import Course
from .harness import (
    CLASSES,
    FEATURES,
    SEED,
    _numbered,
    counts,
    draw,
    initial,
    mlp,
    mlp_net,
    same_state,
)
from .plain import Descent, Outcome, Task

# Three shards of 64. Eight clients train, two a round, so that shards stand still for several
# checkpoints, which share their files then, and change again; all others only join.
CLIENTS, ROUNDS, COHORT, UNSEEN = 166, 8, 2, 0.95
BROKEN, KEPT = 7, 6  # the round after which a run breaks off, and its last checkpoint
MANY = 4  # clients whose state is packed, in the place of 4096: reached between two checkpoints
SIZES = tuple(2 + client % 5 for client in range(CLIENTS))
SETTINGS: dict[str, Any] = {
    "seed": SEED,
    "cohort": COHORT,
    "unseen": UNSEEN,
    "checkpoint": {"every": 2},
    "evaluation": {"parts": ["test"], "every": ROUNDS},
    "device": "cpu",
}
# options; courses in a round, and when a client joins; the oracle
CASES: dict[str, tuple[dict[str, Any], list[Course], list[Course], Any]] = {
    "fedper": ({}, [Course()], [Course()], fedper.run),
    "ditto": (
        {"strength": 0.5},
        [Course(), Course()],
        [Course()],
        lambda task, descent: ditto.run(task, descent, descent, 0.5),
    ),
}


class Killed(Exception):
    pass


def crowd() -> Federation:
    numbers = np.random.Generator(np.random.PCG64(17))
    train, rows = _numbered(SIZES, 0)
    test, rows = _numbered((3,) * CLIENTS, rows)
    x, y = numbers.standard_normal((rows, FEATURES)), numbers.integers(0, CLASSES, rows)
    parts = Rows.of(train), Rows.none(CLIENTS), Rows.of(test)
    return Federation(torch.from_numpy(x), torch.from_numpy(y), *parts, classes=CLASSES)


def made(name: str) -> FedPer | Ditto:
    return METHODS[name](net=mlp_net(), lr=0.1, batch_size=4, **CASES[name][0])


@cache
def new_clients() -> list[int]:
    return definition.held_out(0, CLIENTS, UNSEEN)  # data.seed is 0


@cache
def cohorts() -> list[list[int]]:
    seen = [i for i in range(CLIENTS) if i not in new_clients()]
    return [definition.cohort(SEED, t, seen, COHORT) for t in range(ROUNDS)]


@cache
def expected(name: str) -> Outcome:
    return outcome_of(name, cohorts(), new_clients())


def outcome_of(name: str, cohorts: list[list[int]], joining: list[int]) -> Outcome:
    _, train, join, oracle = CASES[name]
    data, method, last = crowd(), made(name), len(cohorts)
    x, y = data.x.numpy(), data.y.numpy()
    drawn = lambda courses, t, i, purpose: draw(method, courses, SIZES[i], (SEED, t, i, purpose))
    task = Task(
        [initial(mlp, 0)],
        [(x[rows], y[rows]) for rows in data.train],
        [(x[rows], y[rows]) for rows in data.test],
        [{i: drawn(train, t, i, "train") for i in cohort} for t, cohort in enumerate(cohorts)],
        {i: [] for i in range(CLIENTS)},
        {i: drawn(join, last, i, "join") for i in joining},
    )
    return oracle(task, Descent(0.1))


def stored_state(path: Path) -> State:
    return state_of(checkpoint.load(path / "checkpoints"), "cpu")


def break_off(name: str, path: Path, engine: str) -> None:
    def kill(done: Any) -> None:
        if done.round == BROKEN:
            raise Killed

    with pytest.raises(Killed):
        fb.run(made(name), crowd(), ROUNDS, path, on_round=kill, engine=engine, **SETTINGS)
    assert stored_state(path).round == KEPT


def same_scores(path: Path, outcome: Outcome) -> None:
    """The record of the last round: clients that train, and those that only join."""
    query = (
        "SELECT client, correct, examples, loss FROM client_metrics "
        "WHERE round = ? AND part = ? AND view = 'personal' ORDER BY client"
    )
    data = crowd()
    for part, logits in (("test", outcome.logits), ("unseen", outcome.joined)):
        with RunFolder.open(path) as folder:
            rows = folder.store.rows(query, ROUNDS, part)
        who = [i for i in range(CLIENTS) if (i in new_clients()) == (part == "unseen")]
        assert [row["client"] for row in rows] == who
        for i, row in zip(who, rows, strict=True):
            right, scored, loss = counts(logits["personal"][i], data.y.numpy()[data.test[i]])
            assert (row["correct"], row["examples"]) == (right, scored)
            assert row["loss"] == pytest.approx(loss / scored, abs=1e-9)


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_a_run_straight_or_resumed_ends_where_the_oracle_ends(
    name: str, packed: bool, engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if packed:
        monkeypatch.setattr(private_state, "MANY", MANY)
        monkeypatch.setattr(shards, "MANY", MANY)
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    fb.run(made(name), crowd(), ROUNDS, straight, engine=engine, **SETTINGS)
    break_off(name, resumed, engine)
    fb.resume(resumed, made(name), crowd())
    for path in (straight, resumed):
        state = stored_state(path)
        assert state.round == ROUNDS
        same_state(state, expected(name))
        same_scores(path, expected(name))
        files = {file.stem for file in (path / "checkpoints").rglob("clients/*.safetensors")}
        assert files == {"000000", "000001", "000002"}
        assert isinstance(state.private, private_state.ShardedState) == packed


def test_a_shard_stands_still_and_then_changes_before_the_last_round() -> None:
    """Else files that checkpoints share wrongly would not show: between rounds 4 and 6 nobody of
    the third shard trains; in the round before the last one somebody does who did before.
    """
    members = [{i for i in cohort if i >= 128} for cohort in cohorts()]
    assert members[4] == members[5] == members[7] == set()
    assert members[6] and members[6] <= members[0] | members[1] | members[2] | members[3]


def test_clients_on_both_sides_of_a_shards_border_keep_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody trains, twice: the second round begins with what the first one left."""
    monkeypatch.setattr(private_state, "MANY", MANY)
    monkeypatch.setattr(shards, "MANY", MANY)
    own = {"seed": SEED, "device": "cpu", "engine": "vectorised", "evaluation": {"every": 2}}
    fb.run(made("fedper"), crowd(), 2, tmp_path / "run", **own)
    same_state(stored_state(tmp_path / "run"), outcome_of("fedper", [list(range(CLIENTS))] * 2, []))
