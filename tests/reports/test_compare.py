"""Comparisons: which runs there are, what the table says, and when it says nothing."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

import fedblocks
from fedblocks.core.errors import DataError, RunFolderError, UserError
from fedblocks.data import digits
from fedblocks.reports.compare import (
    Comparison,
    compare,
    differences_of,
    interval_of,
    leaderboard_of,
    verdict_of,
    verdict_on,
)
from fedblocks.reports.intervals import bootstrap_interval
from fedblocks.runs.grids.grid import read_grid
from fedblocks.runs.progress import RoundDone
from fedblocks.runs.same_data import partition_hash
from fedblocks.runs.storage.folder import RunFolder

SMALL = [
    "rounds=2",
    "data.clients=8",
    "method.epochs=1",
    "evaluation.every=1",
    "checkpoint.every=1",
]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return compare("digits-pfedmb", ["ditto"], 2, tmp_path_factory.mktemp("compare") / "c", SMALL)


def test_local_fedavg_and_fedavg_with_fine_tuning_are_always_in_the_table(
    found: Comparison,
) -> None:
    assert {row["name"] for row in found.rows} == {"local", "fedavg", "fedavg_ft", "ditto"}
    assert [row["mean"] for row in found.rows] == sorted(
        (row["mean"] for row in found.rows), reverse=True
    )
    assert all(row["seeds"] == 2 for row in found.rows)


def test_all_methods_of_a_seed_have_the_same_data_and_another_seed_has_others(
    found: Comparison,
) -> None:
    hashes = {seed: {partition_hash(runs[seed]) for runs in found.runs.values()} for seed in (0, 1)}
    assert len(hashes[0]) == len(hashes[1]) == 1
    assert hashes[0] != hashes[1]


def test_a_row_holds_means_over_seeds_and_paired_differences_to_local(found: Comparison) -> None:
    row = next(row for row in found.rows if row["name"] == "ditto")
    own, local = (
        [found.runs[name][seed].accuracies() for seed in (0, 1)] for name in ("ditto", "local")
    )
    # [seeds, clients]
    gains = np.array([[a[c] - b[c] for c in sorted(a)] for a, b in zip(own, local)])
    assert row["mean"] == pytest.approx(np.mean([np.mean(list(a.values())) for a in own]))
    assert row["worst"] == pytest.approx(np.mean([min(a.values()) for a in own]))
    assert row["below_local"] == pytest.approx((gains < 0).mean())
    assert row["to_local"]["mean"] == pytest.approx(gains.mean())
    assert row["to_local"]["low"] <= row["to_local"]["mean"] <= row["to_local"]["high"]
    sent = [(run.bytes_down + run.bytes_up) / 1e6 for run in found.runs["ditto"].values()]
    assert row["megabytes"] == pytest.approx(np.mean(sent))


def test_a_method_is_not_compared_with_itself(found: Comparison) -> None:
    rows = {row["name"]: row for row in found.rows}
    assert rows["local"]["to_local"] is None and rows["local"]["below_local"] is None
    assert rows["fedavg"]["to_fedavg"] is None and rows["fedavg"]["to_local"] is not None


def test_below_six_seeds_nobody_is_called_better_or_worse(found: Comparison) -> None:
    assert found.verdict == "not enough seeds for a verdict: 2 of at least 6"
    assert all(row["against_local"] is None and row["against_fedavg"] is None for row in found.rows)


def test_from_six_seeds_on_the_interval_decides(found: Comparison) -> None:
    # three times each
    six = {name: {seed: runs[seed % 2] for seed in range(6)} for name, runs in found.runs.items()}
    assert verdict_on(six).startswith("6 seeds")
    for row in leaderboard_of(six):
        for other in ("local", "fedavg"):
            interval = row[f"to_{other}"]
            if interval is None:
                assert row[f"against_{other}"] is None
            elif interval["low"] > 0:
                assert row[f"against_{other}"] == "better"
            else:
                assert row[f"against_{other}"] == ("worse" if interval["high"] < 0 else "unclear")


def test_finished_runs_are_not_repeated_and_new_methods_are_added(found: Comparison) -> None:
    began: list[str] = []

    def on_run(method: str, seed: int, number: int):  # type: ignore[no-untyped-def]
        return (lambda done: began.append(f"{method}-{seed}")), (lambda note: None)

    again = compare("digits-pfedmb", ["ditto"], 2, found.folder, SMALL, on_run)
    assert began == [] and again.rows == found.rows
    compare(found.folder / "compare.toml", ["ditto", "fedper"], 2, found.folder, on_run=on_run)
    assert set(began) == {"fedper-0", "fedper-1"}


def test_a_comparison_that_was_stopped_goes_on_to_the_same_result(
    found: Comparison, tmp_path: Path
) -> None:
    rounds: list[tuple[str, int]] = []

    def on_run(method: str, seed: int, number: int):  # type: ignore[no-untyped-def]
        def on_round(done: RoundDone) -> None:
            rounds.append((method, seed))
            if len(rounds) == 3:
                raise RuntimeError("stopped")

        return on_round, (lambda note: None)

    with pytest.raises(RuntimeError, match="stopped"):
        compare("digits-pfedmb", ["ditto"], 2, tmp_path / "c", SMALL, on_run)
    assert rounds == [("local", 0), ("local", 0), ("fedavg", 0)]
    whole = compare("digits-pfedmb", ["ditto"], 2, tmp_path / "c", SMALL, on_run)
    # nothing was done twice
    assert rounds.count(("local", 0)) == 2 and rounds.count(("fedavg", 0)) == 2
    for name, runs in whole.runs.items():
        assert {s: r.accuracies() for s, r in runs.items()} == {
            s: found.runs[name][s].accuracies() for s in runs
        }


def test_options_of_one_method_change_that_method_only() -> None:
    grid = read_grid("digits-pfedmb", ["ditto"], 1, ["ditto.strength=0.7", "method.lr=0.2"])
    assert grid.methods["ditto"]["strength"] == 0.7
    assert {name: table["lr"] for name, table in grid.methods.items()} == dict.fromkeys(
        grid.methods, 0.2
    )


def test_methods_of_a_family_of_presets_keep_the_values_they_were_tuned_to() -> None:
    grid = read_grid("digits-pfedmb", ["ditto", "fedrep"], 1)
    tuned = fedblocks.read_config("digits-ditto").method.table
    assert grid.methods["ditto"] == tuned
    # it has no preset
    assert grid.methods["fedrep"]["lr"] == fedblocks.read_config("digits-pfedmb").method.table["lr"]


def test_a_file_may_say_methods_seeds_and_options(tmp_path: Path) -> None:
    table = fedblocks.read_config("digits-fedavg").resolved()
    table["compare"] = {"methods": ["ditto"], "seeds": 3, "ditto": {"strength": 0.9}}
    path = tmp_path / "a.toml"
    path.write_text(tomli_w.dumps(table))
    grid = read_grid(path)
    assert (list(grid.methods), grid.seeds) == (["local", "fedavg", "fedavg_ft", "ditto"], 3)
    assert grid.methods["ditto"]["strength"] == 0.9
    assert (
        read_grid(path, seeds=1, changes=["ditto.strength=0.1"]).methods["ditto"]["strength"] == 0.1
    )


def test_the_plan_in_the_folder_repeats_the_comparison(found: Comparison) -> None:
    wanted = read_grid("digits-pfedmb", ["ditto"], 2, SMALL)
    table = tomllib.loads((found.folder / "compare.toml").read_text())
    assert table["compare"]["methods"][:3] == ["local", "fedavg", "fedavg_ft"]
    path = found.folder.parent / "repeated.toml"
    path.write_text(tomli_w.dumps(wanted.plan()))
    repeated = read_grid(path)
    assert repeated.cells == wanted.cells
    assert all(repeated.config(*cell) == wanted.config(*cell) for cell in wanted.cells)


@pytest.mark.parametrize(
    ("methods", "seeds", "changes", "said"),
    [
        (["dito"], 2, [], 'there is no method "dito"'),
        (["ditto"], 0, [], "0 seeds"),
        (["ditto"], 2, ["ditto.strenght=1"], "strenght"),
        (["ditto"], 2, ["ditto.strength=0"], "for ditto: method.strength"),
        (["ditto"], 2, ['evaluation.parts=["validation"]'], "evaluation.parts"),
        (["ditto"], 2, ["rounds=0"], "rounds"),
        (["modfl"], 2, ['modfl.cohorts="given"'], 'needs the tag "operation"'),
    ],
)
def test_what_cannot_be_compared_is_refused_before_any_run(
    methods: list[str], seeds: int, changes: list[str], said: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as error:
        compare("digits-pfedmb", methods, seeds, tmp_path / "c", changes)
    assert said in str(error.value) and "fix: " in str(error.value)
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("said", "table"),
    [
        ("compare is not a table", 3),
        ("methods is not a list", {"methods": "ditto"}),
        ("seeds is not a whole number", {"seeds": "6"}),
        ('there is no method "ditta"', {"ditta": {}}),
        ("compare.ditto is not a table", {"ditto": 1}),
    ],
)
def test_a_wrong_table_compare_is_named_with_its_place(
    said: str, table: object, tmp_path: Path
) -> None:
    path = tmp_path / "a.toml"
    path.write_text(
        tomli_w.dumps({**fedblocks.read_config("digits-fedavg").resolved(), "compare": table})
    )
    with pytest.raises(UserError) as error:
        read_grid(path)
    assert said in str(error.value) and "fix: " in str(error.value)


def test_a_folder_with_other_runs_or_other_things_is_refused(
    found: Comparison, tmp_path: Path
) -> None:
    with pytest.raises(RunFolderError, match="holds a run with other settings"):
        compare("digits-pfedmb", ["ditto"], 2, found.folder, [*SMALL, "ditto.strength=0.9"])
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(RunFolderError, match="not a comparison"):
        compare("digits-pfedmb", ["ditto"], 2, tmp_path, SMALL)


def test_runs_of_one_seed_on_other_data_are_not_compared(tmp_path: Path) -> None:
    built = compare("digits-pfedmb", [], 1, tmp_path / "c", [*SMALL, "rounds=1"])
    with RunFolder.open(built.runs["fedavg"][0].folder) as folder:
        folder.store.set_meta("federation", "0" * 64)
    with pytest.raises(DataError, match="not the same data"):
        leaderboard_of(built.runs)


@pytest.mark.parametrize(("between", "clients"), [(0.05, 20), (0.1, 60)])
def test_intervals_of_six_seeds_hold_the_truth_in_about_95_percent_of_trials(
    between: float, clients: int
) -> None:
    """Differences of mean 0 with a part that a seed's clients share and a part of each
    client, both normal.
    """
    rng = np.random.Generator(np.random.PCG64(3))
    held = []
    for trial in range(800):
        values = rng.normal(0, between, (6, 1)) + rng.normal(0, 0.1, (6, clients))
        found = interval_of(values, draws=200, seed=trial)
        held.append(found.low <= 0 <= found.high)
    assert np.mean(held) == pytest.approx(0.95, abs=0.02)


def test_an_interval_is_never_narrower_than_the_bootstraps() -> None:
    values = np.random.Generator(np.random.PCG64(0)).normal(0, 0.1, (6, 20))
    plain, found = bootstrap_interval(values), interval_of(values)
    assert found.low <= plain.low and found.high >= plain.high and found.mean == plain.mean
    same = np.full((6, 4), 0.25)
    assert (interval_of(same).low, interval_of(same).high) == (0.25, 0.25)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rounds": 3}, "rounds beside a configuration"),
        ({"threads": 1}, "threads beside a configuration"),
        ({"data": digits}, "data beside a configuration"),
    ],
)
def test_a_preset_says_its_data_rounds_and_settings_itself(options: Any, said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        compare("digits-pfedmb", **options)
    assert "changes=" in caught.value.fix


def test_methods_that_are_made_need_data_and_take_no_changes() -> None:
    for options, said in (
        ({}, "methods need data"),
        ({"data": digits, "changes": ["rounds=3"]}, "names or changes"),
        ({"data": digits, "methods": ["ditto"]}, "names or changes"),
    ):
        with pytest.raises(UserError, match=said):
            compare([], **options)  # type: ignore[arg-type]


def test_an_endless_difference_leaves_nothing_to_say_of_the_mean() -> None:
    ours, theirs = {0: 0.3, 1: math.inf, 2: math.inf}, {0: 0.2, 1: 0.4, 2: math.inf}
    pairs = [(ours, theirs)] * 6
    differences = differences_of(pairs)
    assert differences[0].tolist() == [pytest.approx(0.1), math.inf, 0.0]  # both endless: equal
    interval = interval_of(differences)
    assert (interval.mean, interval.low, interval.high) == (math.inf, -math.inf, math.inf)
    assert verdict_of(interval, -1) == "unclear"
