"""Whole runs, to the last number that is stored, shown or said: as ever, however they are run.

After a change on purpose, delete stories/NAME.txt, run this test twice, read what differs, and say
in the changelog what has changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fedblocks.config.model import Config
from fedblocks.runs.progress import RoundDone
from fedblocks.runs.result import RunResult
from fedblocks.runs.run import resume, run
from fedblocks.runs.stopping import StopRun
from fedblocks.runs.storage.folder import RunFolder

Table = dict[str, Any]
STORIES = Path(__file__).parent / "stories"
COMMON: Table = {"seed": 3, "device": "cpu", "engine": "sequential"}
NET: Table = {"name": "mlp", "hidden": [6]}
GAUSSIAN: Table = {"name": "gaussian", "options": {"rows": 216, "classes": 3, "features": 5}}
# two methods, newcomers, faults of every kind, three parts, local models, two metrics
UNUSUAL: Table = {
    "rounds": 5,
    "data": {**GAUSSIAN, "clients": 9, "split": [0.5, 0.25, 0.25], "unseen": 0.2},
    "net": NET,
    "method": {"name": "fedavg", "lr": 0.3, "batch_size": 8},
    "groups": {"mixed": {"clients": [1, 5, 7], "method": {"name": "pfedmb", "branches": 2}}},
    "faults": {"drop": 0.1, "slow": 0.1, "crash": 0.1, "corrupt": 0.1},
    "evaluation": {"every": 2, "parts": ["train", "validation", "test"], "local": True},
    "cohort": {"size": 0.9},
    "checkpoint": {"every": 2},
    "task": {"kind": "classification", "metrics": ["accuracy", "f1_macro"]},
}
# numbers are predicted; it ends before the last round
IMPATIENT: Table = {
    "rounds": 9,
    "data": {
        "name": "truck_ranges",
        "options": {"trucks": 5, "rows": 12},
        "partition": {"name": "by_user"},
    },
    "net": NET,
    "method": {"name": "ditto", "lr": 0.4, "batch_size": 8, "strength": 0.5},
    "stopping": {"patience": 2},
    "cohort": {"size": 3},
}
QUERIES = {
    "rounds": "SELECT round, clients, bytes_down, bytes_up FROM rounds ORDER BY round",
    "scores": "SELECT round, part, view, client, correct, examples, loss, extra FROM client_metrics"
    " ORDER BY round, part, view, client",
    "means": "SELECT round, part, view, clients, accuracy FROM means ORDER BY round, part, view",
    "traffic": "SELECT round, block, direction, bytes, GROUP_CONCAT(client) AS clients FROM"
    " (SELECT * FROM traffic ORDER BY client) GROUP BY round, block, direction, bytes"
    " ORDER BY round, block, direction, bytes",
    "refused": "SELECT round, client, reason, detail FROM refusals ORDER BY round, client",
    "snapshots": "SELECT round, name, client, numbers FROM snapshots ORDER BY round, name, client",
}


FRACTION = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
NEAR = 1.1e-3  # other processors add in another order


def rounded(text: str) -> str:
    return FRACTION.sub(lambda number: f"{float(number[0]):.3f}", text)


def stored(result: RunResult) -> Iterator[str]:
    with RunFolder.open(result.folder) as folder:
        for name, query in QUERIES.items():
            yield f"== {name}"
            for row in folder.store.rows(query):
                yield rounded(" ".join(map(str, row.values())))


def shown(result: RunResult) -> Iterator[str]:
    """What people see; what takes time is left out."""
    yield f"== {result.status} after {result.rounds} rounds, {result.lanes} lane"
    tables = (result.summary(), result.clients(), result.curves(), result.curves("loss"))
    yield from (line.rstrip() for table in tables for line in rounded(str(table)).splitlines())
    yield f"{result.refused()}"
    plain = result.as_json()
    left = ("folder", "seconds", "warm_seconds")
    yield from (rounded(f"{k}: {json.dumps(v)}") for k, v in plain.items() if k not in left)


def story(table: Table, folder: Path) -> tuple[RunResult, list[str]]:
    """A run, and what was said of it on the way."""
    lines: list[str] = []
    say = lambda done: lines.append(re.sub(r"\S+ s\b", "SECONDS", done.line()))
    result = run(Config.of({**COMMON, **table}), folder, say, lambda note: lines.append(note.text))
    return result, lines


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunResult, list[str]]:
    return story(UNUSUAL, tmp_path_factory.mktemp("straight") / "run")


def check_story(name: str, lines: list[str]) -> None:
    path = STORIES / f"{name}.txt"
    if not path.exists():
        STORIES.mkdir(exist_ok=True)
        path.write_text("\n".join(lines) + "\n")
        pytest.fail(f"{path.name} was written: read it, then commit it")
    ours, noted = "\n".join(lines), path.read_text().strip()
    how = "see the first lines of this file"
    assert FRACTION.sub("#", ours).split("\n") == FRACTION.sub("#", noted).split("\n"), how
    fractions = ([float(one) for one in FRACTION.findall(text)] for text in (ours, noted))
    assert next(fractions) == pytest.approx(next(fractions), abs=NEAR), how


def test_all_that_a_run_says_and_stores_is_as_ever(straight: tuple[RunResult, list[str]]) -> None:
    result, lines = straight
    check_story("unusual", [*lines, *stored(result), *shown(result)])


def test_a_run_that_ends_early_is_as_ever(tmp_path: Path) -> None:
    result, lines = story(IMPATIENT, tmp_path / "run")
    check_story("impatient", [*lines, *stored(result), *shown(result)])


def test_a_run_in_two_halves_and_on_another_engine_is_the_same(
    straight: tuple[RunResult, list[str]], tmp_path: Path
) -> None:
    def stop(at: int, done: RoundDone) -> None:
        if done.round == at:
            raise StopRun("enough")

    config = Config.of({**COMMON, **UNUSUAL, "engine": "vectorised", "chunk": 2})
    half = run(config, tmp_path / "run", partial(stop, 3), lambda note: None)
    assert (half.rounds, half.status) == (3, "finished")
    whole = resume(tmp_path / "run", None, lambda note: None, rounds=5)
    assert [*stored(whole)] == [*stored(straight[0])]
    assert str(whole.summary()) == str(straight[0].summary())
