"""A run whose record was written by hand, as everything that reads it shows it; and which
checkpoints are there, newest first.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedblocks.config.model import Config
from fedblocks.config.options import Table
from fedblocks.core.errors import UserError
from fedblocks.runs.curves import curves_of
from fedblocks.runs.refusals import read_refusals
from fedblocks.runs.result import RunResult, result_of
from fedblocks.runs.storage import checkpoint
from fedblocks.runs.storage.folder import RunFolder
from fedblocks.runs.storage.frozen import check_frozen
from fedblocks.runs.storage.main_metric import KEY, SCORE, MainMetric
from fedblocks.runs.storage.record import (
    ClientMetric,
    Note,
    RefusalRow,
    RoundRecord,
    Traffic,
)

METRIC = MainMetric("rmse", "lower", {"mae": "lower", "accuracy": "higher"})
CLIENTS = (
    '{"names": ["a", "b", "c"], "rows": {"train": [8, 9, 7], "validation": [2, 2, 0], '
    '"test": [4, 2, 0]}}'
)
# round -> client -> rmse and mae on validation data; client 2 has none
VALUES = {1: [(4.0, 3.0), (2.0, 1.0)], 2: [(1.0, 0.5), (3.0, 2.5)], 4: [(2.0, 1.5), (2.0, None)]}


def metric_of(client: int, part: Any, values: tuple[float, float | None]) -> ClientMetric:
    rmse, mae = values
    extra = {SCORE: rmse, "rmse": rmse, "mae": mae, "accuracy": 0.25}
    return ClientMetric(part, "personal", client, 1.0, 4.0 - 2 * client, rmse**2, extra)


def record_of(round: int) -> RoundRecord:
    metrics = [
        metric_of(client, "validation", own) for client, own in enumerate(VALUES.get(round, []))
    ]
    if metrics:
        nobody = {SCORE: None, "rmse": None, "mae": None, "accuracy": None}
        metrics.append(ClientMetric("validation", "personal", 2, 0.0, 0.0, math.nan, nobody))
    return RoundRecord(
        round,
        2.0**round,
        3,
        metrics,
        [Traffic(0, "model", "down", 10), Traffic(1, "model", "up", round)],
        [RefusalRow(1, "shape", f"in {round}")] if round in (2, 3) else [],
        notes=[Note("odd", "warning")] if round == 3 else [],
    )


@pytest.fixture
def folder(small: Table, tmp_path: Path) -> Iterator[RunFolder]:
    with RunFolder.create(tmp_path / "run", Config.of(small).resolved(), {}) as folder:
        folder.store.write_facts({KEY: METRIC.text(), "clients": CLIENTS, "lanes": "2"})
        folder.store.record_round(*map(record_of, range(1, 5)))
        yield folder


@pytest.fixture
def result(folder: RunFolder) -> RunResult:
    return result_of(folder)


def test_totals_are_sums_over_rounds_and_the_best_is_the_least_error(result: RunResult) -> None:
    """2 + 4 + 8 + 16 seconds; warm ones are the median of 4 and 16 thrice, and 8."""
    assert (result.rounds, result.seconds, result.warm_seconds) == (4, 30.0, 38.0)
    assert (result.bytes_down, result.bytes_up, result.lanes) == (40, 10, 2)
    assert result.last is not None and result.last.round == 4
    assert result.best is not None and result.best.round == 2  # of two, the first
    assert [note["text"] for note in result.notes] == ["odd"] and result.metric == METRIC


def test_the_numbers_of_an_evaluation_are_those_of_clients_that_have_some(
    result: RunResult,
) -> None:
    """Of 4 and 2 targets: errors of 1 and 3, losses of 1 and 9."""
    numbers = result.summary("validation", round=2)
    assert dict(numbers) == {
        "clients": 2,
        "examples": 6.0,
        "mean": 2.0,
        "weighted": pytest.approx((4 * 1 + 2 * 3) / 6),
        "bottom_decile": 3.0,
        "worst": 3.0,
        "std": 1.0,
        "loss": pytest.approx((4 * 1 + 2 * 9) / 6),
        "share_below_reference": None,
    }
    assert [row["mean"] for row in numbers.table] == [2.0]
    assert numbers.remarks == [
        "1 of 3 clients have no validation rows",
        "2 of 12 updates were refused (client 1; the latest: shape: in 3)",
    ]
    assert str(numbers).startswith("fedavg, rmse of clients after round 2 of 3\n")
    assert result.summary("validation", round=2, metric="mae")["mean"] == 1.5
    assert result.summary("validation", metric="mae")["clients"] == 1  # round 4, where b has none


def test_scores_are_of_the_asked_metric_round_and_clients(result: RunResult) -> None:
    assert result.scores(part="validation") == {0: 2.0, 1: 2.0}
    assert result.scores("mae", "validation", round=1) == {0: 3.0, 1: 1.0}
    assert result.scores("loss", "validation", round=1) == {0: 16.0, 1: 4.0}
    assert result.accuracies("validation") == {0: 0.25, 1: 0.25}
    with pytest.raises(UserError, match='the run has no metric "f1"'):
        result.scores("f1", "validation")


def test_clients_have_a_row_each_with_every_metric_of_an_evaluation(result: RunResult) -> None:
    columns = ("client", "name", "size", "validation", "validation mae", "validation accuracy")
    rows = [tuple(row[name] for name in columns) for row in result.clients(round=2)]
    assert rows == [
        (0, "a", 8, 1.0, 0.5, 0.25),
        (1, "b", 9, 3.0, 2.5, 0.25),
        (2, "c", 7, None, None, None),
    ]
    assert [row["validation"] for row in result.clients()] == [2.0, 2.0, None]


@pytest.mark.parametrize(
    ("metric", "means"),
    [
        (None, [3.0, 2.0, 2.0]),
        ("rmse", [3.0, 2.0, 2.0]),
        ("mae", [2.0, 1.5, 1.5]),
        ("accuracy", [0.25, 0.25, 0.25]),
        ("loss", [10.0, 5.0, 4.0]),
    ],
)
def test_curves_are_means_over_the_clients_that_have_a_metric(
    folder: RunFolder, metric: str | None, means: list[float]
) -> None:
    rows = curves_of(folder.store, metric)
    assert [(row["round"], row["validation"]) for row in rows] == list(
        zip((1, 2, 4), means, strict=True)
    )


def test_refused_updates_are_counted_in_all_rounds_and_in_the_last(folder: RunFolder) -> None:
    refused = read_refusals(folder.store)
    assert refused[:6] == (2, 12, 0, 3, "shape: in 3", (1,))


def test_a_result_as_plain_values_has_everything(result: RunResult) -> None:
    plain = result.as_json()
    assert plain["name"] == "run" and plain["metric"] == "rmse" and plain["method"] == "fedavg"
    assert plain["last"]["round"] == 4 and plain["best_by_validation"]["round"] == 2
    assert plain["last"]["validation"]["personal"]["mean"] == 2.0
    numbers = ("rounds", "seconds", "warm_seconds", "lanes", "bytes_down", "bytes_up")
    assert [plain[name] for name in numbers] == [4, 30.0, 38.0, 2, 40, 10]
    assert "rmse of clients after round 4 of 3" in result._repr_html_()


def test_the_best_round_is_the_first_of_the_best_and_never_chosen_on_test_data(
    folder: RunFolder,
) -> None:
    assert folder.store.best_round() == 2
    folder.store.set_meta(KEY, MainMetric("rmse", "higher").text())
    assert folder.store.best_round() == 1
    assert folder.store.best_round("train") is None
    with pytest.raises(UserError, match="never chosen on test data"):
        folder.store.best_round("test")


def tree_of(number: int) -> Any:
    return {"w": torch.tensor([float(number)])}


def test_checkpoints_are_read_newest_first_and_later_ones_can_be_dropped(tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    assert not checkpoint.has_checkpoints(root) and checkpoint.newest_round(root) == 0
    for round in (1, 2, 3, 4):
        checkpoint.save(root, round, tree_of(round), {0: tree_of(round)}, None, keep=4)
    assert checkpoint.has_checkpoints(root) and checkpoint.newest_round(root) == 4
    assert checkpoint.load(root).round == 4
    recorded = checkpoint.load(root, recorded=3)
    assert recorded.round == 3 and recorded.shared["w"].item() == 3.0
    assert recorded.skipped == ["round-000004: the record of the run ends with round 3"]
    (root / "round-000004" / "manifest.json").unlink()
    assert checkpoint.newest_round(root) == 3
    checkpoint.drop_later(root, 2)
    assert sorted(path.name for path in root.iterdir()) == ["round-000001", "round-000002"]
    checkpoint.drop_later(root, 2)
    assert checkpoint.newest_round(root) == 2


def test_a_record_that_ends_before_all_checkpoints_is_to_be_restored(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 2, tree_of(2), {}, None)
    with pytest.raises(UserError, match="no usable checkpoint") as error:
        checkpoint.load(tmp_path, recorded=1)
    assert error.value.fix.startswith("restore run.sqlite and run.sqlite-wal together")
    (tmp_path / "round-000002" / "manifest.json").unlink()
    with pytest.raises(UserError) as error:
        checkpoint.load(tmp_path, recorded=2)
    assert error.value.fix == "start the run again in a new folder"


@pytest.mark.parametrize("wrong", [{"round": -1}, {"keep": 0}, {"clients": {-1: {}}}])
def test_a_checkpoint_has_numbers_from_nought_and_one_at_least_is_kept(
    wrong: dict[str, Any], tmp_path: Path
) -> None:
    usual: dict[str, Any] = {"round": 0, "shared": tree_of(0), "clients": {0: tree_of(0)}}
    assert checkpoint.save(tmp_path, changed=None, keep=1, **usual).name == "round-000000"
    with pytest.raises(ValueError, match="start at 0"):
        checkpoint.save(tmp_path, changed=None, **{**usual, **wrong})


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ({}, {"a": "1"}, ""),  # a record of before frozen blocks were noted
        ({"a": "1"}, {"a": "1"}, ""),
        (
            {"a": "1"},
            {"a": "2"},
            '"a" is not the one that the run was started with (hash 2, not 1)',
        ),
        ({"a": "1"}, {"a": "1", "b": "2"}, '"b" is not the one that the run was started with'),
        ({"a": "1", "b": "2"}, {"a": "1"}, "(hash none, not 2)"),
    ],
)
def test_frozen_blocks_are_those_that_a_run_began_with_none_more_and_none_less(
    folder: RunFolder, before: dict[str, str], now: dict[str, str], said: str
) -> None:
    folder.store.set_meta("frozen", json.dumps(before))
    experiment: Any = SimpleNamespace(frozen=SimpleNamespace(hashes=now))
    if not said:
        check_frozen(folder, experiment)
        return
    with pytest.raises(UserError) as error:
        check_frozen(folder, experiment)
    assert said in error.value.message
