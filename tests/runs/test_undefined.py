"""A metric that nobody has, and questions about evaluations that a run has not."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedblocks as fb
from fedblocks.cli import main
from fedblocks.nets import mlp
from fedblocks.reports.comparison_text import rank_of
from fedblocks.reports.html import facts
from fedblocks.reports.html.gather import gather
from fedblocks.runs.progress import RunWarning

NEVER = fb.Metric("never", lambda outputs, targets: math.nan)
pytestmark = pytest.mark.filterwarnings('ignore:the metric "never" is NaN')


def numbers(unknown: str = "") -> fb.Federation:
    """Four clients with a number to learn, which is not known in some part, or anywhere."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(160, 6)).astype("float32"), rng.normal(size=(160, 1))
    users, task = np.repeat(np.arange(4), 40), fb.Task("regression")
    make = lambda: fb.Federation.from_users(x, y, users, task=task, split=(0.6, 0.2, 0.2))
    data = make()
    for part in [unknown] if unknown in data.parts else [*data.parts] * bool(unknown):
        y[data.parts[part].index] = math.nan
    return make()


def classes() -> fb.Federation:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(160, 6)).astype("float32"), rng.integers(0, 3, 160)
    task = fb.Task(metrics=[NEVER, "accuracy"])
    return fb.Federation.from_users(
        x, y, np.repeat(np.arange(4), 40), task=task, split=(0.6, 0.2, 0.2)
    )


def some_have(defined: int) -> fb.Federation:
    """Clients 0 to `defined` - 1 have the metric, client 0 one that is worse where more have it."""

    def mine(outputs: torch.Tensor, y: torch.Tensor) -> float:
        client = int(y[0])
        return (-defined if client == 0 else client) if client < defined else math.nan

    rng = np.random.default_rng(0)
    x, users = rng.normal(size=(160, 6)).astype("float32"), np.repeat(np.arange(4), 40)
    task = fb.Task(metrics=[fb.Metric("mine", mine), "accuracy"])
    return fb.Federation.from_users(x, users, users, task=task, split=(0.6, 0.2, 0.2))


def fedavg(outputs: int) -> fb.FedAvg:
    return fb.FedAvg(mlp((6,), outputs, hidden=(4,)), lr=0.01, batch_size=8)


def test_a_summary_of_a_metric_that_nobody_has_is_nan(tmp_path: Path) -> None:
    run = fb.run(fedavg(3), classes(), 2, tmp_path / "run")
    summary = run.summary()
    assert summary["mean"] is not None and math.isnan(summary["mean"]) and summary["clients"] == 0
    assert "never is undefined (NaN) for every client" in str(summary)
    assert run.scores() == {} and len(run.scores("accuracy")) == 4
    assert run.last is not None and run.last.round == 2 and run.best is None
    accuracy = run.summary(metric="accuracy")
    assert accuracy["clients"] == 4 and "undefined" not in str(accuracy)


def test_a_comparison_by_a_metric_that_nobody_has_ends_all_the_same(tmp_path: Path) -> None:
    methods = {"local": fb.Local(fedavg(3).net, lr=0.1), "fedavg": fedavg(3)}
    both = fb.compare(methods, classes(), seeds=1, rounds=1, out=tmp_path / "out")
    assert len(both.rows) == 2 and all(math.isnan(row["mean"]) for row in both.rows)
    assert all(row["to_local"] is None for row in both.rows)
    assert str(both).count("never is undefined (NaN) for every client") == 1  # of all runs


def test_who_lacks_a_metric_in_the_reference_only_is_not_compared_with_it(tmp_path: Path) -> None:
    """Such as the precision of a model that never says yes."""
    alone, together = (
        fb.run(fedavg(4), some_have(defined), 1, tmp_path / name)
        for name, defined in (("alone", 2), ("together", 3))
    )
    numbers = together.summary(reference=alone)
    assert numbers["clients"] == 3 and numbers["share_below_reference"] == 0.5  # of two clients
    said = "is undefined (NaN) for 1 of 4 clients, and the means leave them out"
    assert f"mine {said}" in str(numbers) and "undefined" not in str(alone.summary(metric="loss"))
    nobody = fb.run(fedavg(4), some_have(0), 1, tmp_path / "nobody")
    share = together.summary(reference=nobody)["share_below_reference"]
    assert share is not None and math.isnan(share)


def test_a_report_says_why_it_has_no_leaderboard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = fb.run(fedavg(3), classes(), 1, tmp_path / "run")

    def refuse(runs: object) -> None:
        raise fb.UserError("they are unlike", "")

    monkeypatch.setattr(facts, "leaderboard_of", refuse)
    told = facts.facts_of(gather(run.folder))
    assert told["leaderboard"] == [] and told["remarks"] == []
    assert told["no_leaderboard"] == "There is no leaderboard: they are unlike."


def test_the_command_compares_by_a_metric_that_nobody_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(fb.METRICS, "never", NEVER)
    small = ["rounds=1", "data.clients=4", 'task.metrics=["never"]']
    changes = [word for change in small for word in ("--set", change)]
    out = ["--out", str(tmp_path / "out"), "--quiet", "--seeds", "1"]
    with pytest.raises(SystemExit) as end:
        main(["compare", "digits-fedavg", *changes, *out])
    assert not end.value.code and "nan" in capsys.readouterr().out
    for folder in (tmp_path / "out", tmp_path / "out" / "runs" / "local-0"):
        with pytest.raises(SystemExit) as end:
            main(["report", str(folder)])
        assert not end.value.code


def test_undefined_rows_of_a_leaderboard_are_last() -> None:
    rows = [{"mean": value} for value in (math.nan, 0.2, None, 0.9)]
    ranked = sorted(rows, key=lambda row: rank_of(1, row))
    assert [row["mean"] for row in ranked[:2]] == [0.9, 0.2]
    assert sorted(rows, key=lambda row: rank_of(-1, row))[0]["mean"] == 0.2


@pytest.mark.parametrize("unknown", ["everywhere", "train"])
def test_data_without_a_known_target_are_refused_before_training(
    unknown: str, tmp_path: Path
) -> None:
    with pytest.raises(fb.DataError, match="no training row has a target that is known"):
        fb.run(fedavg(1), numbers(unknown), 2, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.filterwarnings("ignore:.*targets are missing")
def test_test_data_without_a_known_target_leave_their_numbers_undefined(tmp_path: Path) -> None:
    run = fb.run(fedavg(1), numbers("test"), 1, tmp_path / "run")
    assert math.isnan(run.summary()["mean"] or 0.0)
    assert run.last is not None and [*run.last.summaries] == ["validation"]


def test_early_stopping_says_once_that_its_metric_is_undefined(tmp_path: Path) -> None:
    text = "validation never is undefined \\(NaN\\) for every client after round 1"
    with pytest.warns(RunWarning, match=text) as heard:
        run = fb.run(fedavg(3), classes(), 3, tmp_path / "run", stopping=1)
    assert run.rounds == 3 and len([w for w in heard if "early stopping" in str(w.message)]) == 1
    assert len([note for note in run.notes if "early stopping" in note["text"]]) == 1
    with pytest.warns(RunWarning, match=text):
        fb.run(fedavg(3), classes(), 1, tmp_path / "own", on_round=fb.EarlyStopping(1))


@pytest.mark.filterwarnings("ignore:.*targets are missing")
def test_early_stopping_needs_known_targets(tmp_path: Path) -> None:
    with pytest.raises(fb.DataError, match="no client has validation data"):
        fb.run(fedavg(1), numbers("validation"), 2, tmp_path / "run", stopping=1)


@pytest.mark.parametrize(
    ("asked", "message", "fix"),
    [
        ({"part": "tst"}, 'part = "tst"', '"test"'),
        ({"view": "shard"}, 'view = "shard"', "personal"),
        ({"round": 77}, "round = 77: it was not evaluated", "choose from 2, 3"),
        ({"round": 1}, "round = 1: it was not evaluated", "choose from 2, 3"),
    ],
)
def test_a_wrong_argument_is_named_with_what_there_is(
    asked: dict[str, Any], message: str, fix: str, tmp_path: Path
) -> None:
    run = fb.run(fedavg(3), classes(), 3, tmp_path / "run", evaluation=2)
    for question in (run.summary, run.scores):
        with pytest.raises(fb.UserError) as error:
            question(**asked)
        assert message in error.value.message and fix in error.value.fix
