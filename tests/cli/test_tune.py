"""Searches: by validation accuracy only, resumable, with a command that runs what was found."""

import builtins
import shlex
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from fedblocks.core.errors import UserError
from fedblocks.runs.grids import tune as module
from fedblocks.runs.grids.space import OneOf, Range, parse_space
from fedblocks.runs.grids.tune import Trial, tune
from fedblocks.runs.result import load_run
from fedblocks.runs.run import run
from fedblocks.runs.storage.folder import RunFolder

optuna = pytest.importorskip("optuna", reason="needs Optuna: pip install 'fedblocks[tune]'")

SEARCH = ["--set", "method.lr=0.001..0.5:log", "--set", "method.epochs=1|2", "--set", "seed=5"]


@pytest.fixture
def config(tmp_path: Path) -> str:
    """A configuration that runs in an instant."""
    table = {
        "rounds": 3,
        "data": {
            "name": "gaussian",
            "clients": 4,
            "options": {"rows": 120, "classes": 3, "features": 5},
        },
        "net": {"name": "mlp", "hidden": [6]},
        "method": {"name": "fedavg", "batch_size": 8},
    }
    path = tmp_path / "config.toml"
    path.write_text(tomli_w.dumps(table))
    return str(path)


def test_the_best_of_all_trials_is_told_with_a_command_that_repeats_it(
    fedblocks: Any, config: str
) -> None:
    actual = fedblocks("tune", config, *SEARCH, "--trials", "4", "--out", "search", "--json").json
    accuracies = {trial["number"]: trial["accuracy"] for trial in actual["trials"]}
    assert len(accuracies) == 4 and actual["best"]["accuracy"] == max(accuracies.values())
    assert all(
        0.001 <= t["options"]["method.lr"] <= 0.5 and t["options"]["method.epochs"] in "12"
        for t in actual["trials"]
    )
    words = shlex.split(actual["command"])
    assert words[:3] == ["fedblocks", "run", config] and "seed=5" in words
    assert fedblocks(*words[1:], "--out", "best", "--quiet").code == 0
    last = load_run("best").last
    assert (
        last is not None
        and last.summaries["validation"]["personal"]["mean"] == actual["best"]["accuracy"]
    )


def test_test_data_are_never_looked_at(config: str, tmp_path: Path) -> None:
    tune(config, ["method.lr=0.01..0.1"], 1, tmp_path / "search")
    with RunFolder.open(tmp_path / "search" / "trial-000") as folder:
        assert {row["part"] for row in folder.store.rows("SELECT part FROM client_metrics")} == {
            "validation"
        }


def test_the_same_call_goes_on_where_the_last_one_stopped(config: str, tmp_path: Path) -> None:
    changes, message = ["method.lr=0.001..0.5:log"], list[Trial]()
    first = tune(config, changes, 2, tmp_path / "search")
    again = tune(config, changes, 3, tmp_path / "search", message.append)
    assert again.trials[:2] == first.trials and [trial.number for trial in message] == [2]
    assert len({trial.options["method.lr"] for trial in again.trials}) == 3
    with pytest.raises(UserError, match="a search with other settings"):
        tune(config, ["method.lr=0.001..0.6:log"], 3, tmp_path / "search")


def test_a_trial_during_which_the_search_was_killed_is_done_again(
    config: str, tmp_path: Path
) -> None:
    changes = ["method.lr=0.001..0.5:log"]
    tune(config, changes, 1, tmp_path / "search")
    study = optuna.load_study(
        study_name="fedblocks", storage=f"sqlite:///{tmp_path / 'search' / 'study.db'}"
    )
    # begun, and never told how it ended
    study.ask().suggest_float("method.lr", 0.001, 0.5, log=True)
    lost = study.trials[-1].params["method.lr"]
    actual = tune(config, changes, 2, tmp_path / "search")
    assert [trial.number for trial in actual.trials] == [0, 2]
    assert actual.trials[1].options["method.lr"] == float(f"{lost:.4g}")


def test_a_combination_that_is_refused_is_a_failed_trial_and_the_others_go_on(
    fedblocks: Any, config: str
) -> None:
    """A cohort of four of two clients cannot be."""
    search = ["--set", "data.clients=2|4", "--set", "cohort.size=2|4", "--set", "seed=1"]
    words = ["tune", config, *search, "--trials", "8", "--out", "search"]
    shown = fedblocks(*words)
    assert shown.code == 0, shown.err
    refused = [line for line in shown.out.splitlines() if "  refused  " in line]
    assert refused and all("4 clients a round, but there are 2" in line for line in refused)
    actual = fedblocks(*words, "--json").json
    assert len(actual["trials"]) == 8
    states = [trial["state"] for trial in actual["trials"]]
    assert states.count("fail") == len(refused) and "complete" in states
    assert all(trial["reason"] for trial in actual["trials"] if trial["state"] == "fail")


def test_a_search_whose_trials_are_all_refused_says_why(
    config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(config: Any) -> Any:
        raise UserError("it cannot be", "no")

    monkeypatch.setattr(module, "prepare", refuse)
    with pytest.raises(UserError, match="none of 2 trials came to its end; trial 0: it cannot be"):
        tune(config, ["method.lr=0.01..0.1"], 2, tmp_path / "search")


def test_a_trial_that_is_not_promising_is_left_and_could_be_resumed(
    config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_pruner", lambda optuna: optuna.pruners.ThresholdPruner(lower=1.1))
    with pytest.raises(UserError, match="none of 1 trials came to its end"):
        tune(config, ["method.lr=0.01..0.1"], 1, tmp_path / "search")
    left = load_run(tmp_path / "search" / "trial-000")
    assert (left.status, left.rounds) == ("interrupted", 1)


def test_trials_of_an_engine_that_stacks_clients_are_lanes_and_end_as_each_alone(
    config: str, tmp_path: Path
) -> None:
    changes = ["method.lr=0.001..0.5:log", "method.epochs=1|2", 'engine="vectorised"']
    heard = list[Trial]()
    actual = tune(config, changes, 5, tmp_path / "search", heard.append)
    assert {trial.number for trial in heard} == set(range(5))
    runs = [load_run(tmp_path / "search" / f"trial-{number:03d}") for number in range(5)]
    assert any(own.lanes > 1 for own in runs)
    for trial, own in zip(actual.trials, runs, strict=True):
        alone = run(own.config, tmp_path / f"alone-{trial.number}").last
        assert alone is not None
        assert trial.score == alone.summaries["validation"]["personal"]["mean"]


def test_ranges_and_choices_are_read() -> None:
    space, fixed = parse_space(
        ["a=0.01..1:log", "b=2..8", "c=-1..1.5", "d=1e-3..1e-1", "e=[1]|[2]", "f=3"]
    )
    assert space["a"] == Range(0.01, 1, True) and space["b"] == Range(2, 8, False)
    assert space["c"] == Range(-1, 1.5, False) and space["d"] == Range(1e-3, 1e-1, False)
    assert space["e"] == OneOf(("[1]", "[2]")) and fixed == ["f=3"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["rounds=2"], ["nothing to search for", "0.01..1:log"]),
        (["method.lr=1..0.1"], ["--set method.lr=1..0.1", "the smaller number first"]),
        (["method.lr=0..1:log"], ["--set method.lr=0..1:log", "above 0"]),
        (["method.lr=a..b"], ["--set method.lr=a..b", "two numbers"]),
        (["method.rate=0.1..1"], ["--set method.rate", "no such option"]),
        (["method.epochs=1|x"], ["--set method.epochs", 'epochs = "x": must be a whole number']),
    ],
)
def test_what_cannot_be_searched_for_is_told_before_anything_runs(
    config: str, tmp_path: Path, changes: list[str], said: list[str]
) -> None:
    with pytest.raises(UserError) as caught:
        tune(config, changes, 1, tmp_path / "search")
    assert all(words in str(caught.value) for words in said)
    assert not (tmp_path / "search").exists()


def test_without_the_extra_it_says_which_to_install(
    fedblocks: Any, config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "optuna":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    shown = fedblocks("tune", config, *SEARCH)
    assert shown.code == 2 and 'pip install "fedblocks[tune]"' in shown.err
