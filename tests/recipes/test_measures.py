"""What is read off a run, against the same number found another way."""

import json
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedblocks.config.model import Config
from fedblocks.engines.round import run_round
from fedblocks.recipes.measures import measure
from fedblocks.recipes.recipe import merge_tables
from fedblocks.runs.build import prepare
from fedblocks.runs.result import RunResult
from fedblocks.runs.run import run

from .conftest import DIGITS


@pytest.fixture(scope="module")
def branched(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """pFedMB on digits, evaluated after both rounds."""
    method = {
        "name": "pfedmb",
        "lr": 0.2,
        "alpha_lr": 3.0,
        "branches": 3,
        "batch_size": 64,
        "alpha_scope": "model",
    }
    table: dict[str, Any] = merge_tables({**DIGITS, "method": method}, {"threads": 1})
    return run(Config.of(table), tmp_path_factory.mktemp("runs") / "branched")


def test_mean_and_pooled_accuracy_weigh_clients_and_examples(branched: RunResult) -> None:
    summary = branched.summary("test")
    assert measure(branched, {"name": "mean_accuracy"})["value"] == pytest.approx(
        100 * summary["mean"], abs=1e-4
    )
    pooled = measure(branched, {"name": "pooled_accuracy"})["value"]
    assert pooled == pytest.approx(100 * summary["weighted"], abs=1e-4)
    alone = measure(branched, {"name": "pooled_accuracy", "clients": [2]})["value"]
    assert alone == pytest.approx(100 * branched.accuracies("test")[2], abs=1e-4)


def test_fine_tuning_is_one_more_local_training_of_all_clients(branched: RunResult) -> None:
    prepared = prepare(branched.config)
    _, report = run_round(
        prepared.experiment, branched.state(), range(4), prepared.engine, "validation"
    )
    shares = [correct / labels for correct, labels, _ in report.counts["local"].values()]
    value = measure(branched, {"name": "fine_tuned_accuracy"}, "validation")["value"]
    assert value == pytest.approx(25 * sum(shares), abs=1e-4)


def test_a_curve_has_every_evaluation_and_the_parameters_sent_until_then(
    branched: RunResult,
) -> None:
    curve = measure(branched, {"name": "accuracy_curve"})
    assert curve["rounds"] == [1, 2] and curve["value"] == curve["accuracy"][-1]
    assert 4 * curve["parameters"][-1] == branched.bytes_down + branched.bytes_up
    assert (
        2 * curve["parameters"][0]
        == curve["parameters"][1]
        == curve["parameters_without_router"][1]
    )


def test_a_curve_is_of_the_models_that_are_asked_for(tmp_path: Path) -> None:
    method = {"name": "ditto", "lr": 0.1, "batch_size": 64, "personal_epochs": 3}
    both = run(Config.of({**DIGITS, "method": method, "threads": 1}), tmp_path / "both")
    curves = {
        view: measure(both, {"name": "accuracy_curve", "view": view})["accuracy"]
        for view in ("personal", "shared")
    }
    for view, curve in curves.items():
        means = [both.summary("test", view, round)["mean"] for round in (1, 2)]
        assert curve == pytest.approx([100 * mean for mean in means], abs=1e-4)
    assert curves["personal"] != curves["shared"]


def test_branch_weights_are_on_the_simplex_and_start_apart_from_each_other(
    branched: RunResult,
) -> None:
    actual = measure(branched, {"name": "branch_weights"})
    last = actual["alpha"][-1]
    assert len(last) == 4 and all(sum(client) == pytest.approx(1, abs=1e-3) for client in last)
    top = [client.index(max(client)) for client in last]
    own = [top[a] == top[a + 1] and top[a] not in top[2 - a : 4 - a] for a in (0, 2)]
    assert actual["value"] == 50 * sum(own)


def test_a_chosen_value_can_be_the_number_of_a_table(branched: RunResult, tmp_path: Path) -> None:
    assert measure(branched, {"name": "configured", "key": "method.branches"}) == {"value": 3}


def test_branch_weights_group_clients_by_their_numbers_though_some_never_trained(
    branched: RunResult, tmp_path: Path
) -> None:
    """Client 1 is missing: clients 0 | 2, 3 prefer branches 0 | 1, 1, so both groups have their
    own.

    By position in the list, 0, 2 | 3 would be the groups, with branches {0, 1} | {1}: one of two.
    """
    copy = tmp_path / "copy"
    shutil.copytree(branched.folder, copy)
    with closing(sqlite3.connect(copy / "run.sqlite")) as db, db:
        db.execute("DELETE FROM snapshots WHERE name = 'alpha'")
        for client, alpha in ((0, [9.0, 0.0, 0.0]), (2, [0.0, 9.0, 0.0]), (3, [0.0, 9.0, 0.0])):
            db.execute(
                "INSERT INTO snapshots VALUES (2, 'alpha', ?, ?)", (client, json.dumps(alpha))
            )
    weights = measure(replace(branched, folder=copy), {"name": "branch_weights"})
    assert weights["value"] == 100
    assert [client is None for client in weights["alpha"][0]] == [False, True, False, False]
    # of those who trained: 1 / (1 + 2 e^-9) = 0.9998 for each
    assert weights["mean_largest_alpha"] == [pytest.approx(0.9998, abs=1e-4)]
