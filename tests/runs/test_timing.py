"""The seconds of a leaderboard are those of a process that is warm."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedblocks
from fedblocks.config.presets import read_config
from fedblocks.reports.compare import leaderboard_of
from fedblocks.reports.tables import leaderboard
from fedblocks.runs.result import RunResult, load_run
from fedblocks.runs.storage.folder import RunFolder
from fedblocks.runs.storage.record import LANES
from fedblocks.runs.storage.seals import seal_rounds
from fedblocks.runs.timing import WARM, describe_seconds, warm_seconds

SMALL = ["data.clients=8", "method.epochs=1", "evaluation.every=2"]


def timed(folder: Path, seconds: list[float], lanes: int = 1) -> RunResult:
    """A run, evaluated in rounds 2, 4 and so on, whose rounds took these seconds."""
    config = read_config("digits-fedavg", [f"rounds={len(seconds)}", *SMALL])
    fedblocks.run(config, folder)
    with RunFolder.open(folder) as run:
        for round, own in enumerate(seconds, 1):
            run.store._db.execute("UPDATE rounds SET seconds = ? WHERE round = ?", (own, round))
        seal_rounds(run.store._db, 1)
        run.store._db.commit()
        run.store.set_meta(LANES, str(lanes))
    return load_run(folder)


@pytest.fixture(scope="module")
def cold(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """The run that compiles: its first round, its first evaluation, and round 5 after a stop."""
    return timed(tmp_path_factory.mktemp("cold") / "a", [40.0, 13.0, 1.0, 3.0, 30.0, 3.0, 1.0, 3.0])


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    return timed(tmp_path_factory.mktemp("warm") / "b", [1.0, 3.0, 1.0, 3.0, 1.0, 3.0, 1.0, 3.0])


def test_a_run_that_compiles_takes_no_longer_than_one_that_need_not(
    cold: RunResult, warm: RunResult
) -> None:
    # four rounds of 1 s, four of 3 s with an evaluation
    assert cold.warm_seconds == warm.warm_seconds == warm.seconds == 16
    assert cold.seconds == 94
    rows = leaderboard_of({"fedavg": {0: cold}, "again": {0: warm}})
    assert [(row["seconds"], row["lanes"]) for row in rows] == [(16, 1), (16, 1)]
    assert {row["name"]: row["total_seconds"] for row in rows} == {"fedavg": 94, "again": 16}
    assert {row["seconds"] for row in leaderboard({"a": cold, "b": warm})} == {16}
    assert cold.as_json()["warm_seconds"] == 16 and cold.as_json()["seconds"] == 94


def test_every_round_has_the_seconds_of_its_kind(cold: RunResult) -> None:
    with RunFolder.open(cold.folder) as run:
        assert warm_seconds(run.store) == dict(enumerate([1.0, 3.0] * 4, 1))


def test_rounds_that_came_once_are_all_that_is_known(tmp_path: Path) -> None:
    assert timed(tmp_path / "one", [5.0]).warm_seconds == 5
    assert timed(tmp_path / "two", [5.0, 2.0]).warm_seconds == 7  # one of each kind


def test_the_text_says_when_runs_shared_their_time_in_other_numbers(
    warm: RunResult, tmp_path: Path
) -> None:
    shared = timed(tmp_path / "lane", [1.0, 3.0], lanes=6)
    alike = leaderboard_of({"fedavg": {0: warm}, "again": {0: warm}})
    assert describe_seconds(alike) == WARM and "warm-up are left out" in WARM
    rows = leaderboard_of({"fedavg": {0: warm}, "ditto": {0: shared}})
    assert "cannot be compared" in describe_seconds(rows)
    assert "fedavg: 1" in describe_seconds(rows) and "ditto: 6" in describe_seconds(rows)
