"""The suite in pieces: stale rows, results of two machines, and what is missing."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from fedblocks.methods import METHODS
from fedblocks.recipes.recipe import Cell
from fedblocks.recipes.running.reproduction import Reproduction
from fedblocks.recipes.running.results import Results
from fedblocks.recipes.suite.beds import BEDS
from fedblocks.recipes.suite.entrants import suite_recipe
from fedblocks.recipes.suite.planning import MissingRow, estimate, fitting_rows, stored_seconds
from fedblocks.recipes.suite.scores import REFERENCES

from .test_suite_command import MINE, TINY, Fedblocks, fedblocks

__all__ = ["fedblocks"]  # a fixture
STORED = Path(__file__).parents[2] / "results"
ON_TINY = ("--beds", "tiny", "--seeds", "1")


def change(path: Path, **numbers: Any) -> None:
    """Other numbers for the first seed of every row in a results file."""
    table = json.loads(path.read_text())
    for entry in table["cells"].values():
        entry["seeds"]["0"] |= numbers
    path.write_text(json.dumps(table))


def test_a_stale_row_is_named_dropped_and_run_again(fedblocks: Fedblocks, jobs: list[Any]) -> None:
    fedblocks("local", *ON_TINY)
    path = Path("results/suite-1-local.json")
    before = json.loads(path.read_text())["cells"]["tiny/local"]["seeds"]["0"]
    change(path, key="another", seconds=-1.0)
    jobs.clear()
    _, out, err = fedblocks("local", *ON_TINY, "--budget", "0s")
    assert "tiny/local, seed 0: stale: other settings" in err and jobs == []
    assert json.loads(path.read_text())["cells"]["tiny/local"]["seeds"] == {}
    assert "nothing has been run yet" in out
    _, _, err = fedblocks("local", *ON_TINY)
    assert "stale" not in err and len(jobs) == 1
    again = json.loads(path.read_text())["cells"]["tiny/local"]["seeds"]["0"]
    assert (again["value"], again["key"]) == (before["value"], before["key"])
    assert again["seconds"] >= 0


def keys_of_today(recipe_name: str) -> dict[str, bool]:
    """Every stored row of a file, and whether its runs are those of today's settings."""
    recipe = suite_recipe(recipe_name)
    results = Results.open(STORED, recipe, False)
    cells: dict[str, Cell] = {cell.key: cell for cell in recipe.cells}
    today = Reproduction(recipe.cells, results, 6, Path("runs"))
    return {
        key: all(
            one["key"] == today._task(cells[key], entry["chosen"], int(seed), "test").key
            for seed, one in entry["seeds"].items()
        )
        for key, entry in results.cells.items()
        if entry["seeds"]
    }


def test_no_stored_row_is_stale() -> None:
    names = [path.stem for path in STORED.glob("suite-1-*.json")]
    rows = {key: is_today for name in names for key, is_today in keys_of_today(name).items()}
    assert len(rows) >= 90 and [key for key, is_today in rows.items() if not is_today] == []


def test_rows_of_two_machines_are_joined_and_nothing_is_run_twice(
    fedblocks: Fedblocks, jobs: list[Any]
) -> None:
    fedblocks("local", *ON_TINY, "--out", "here")
    fedblocks("fedper", *ON_TINY, "--out", "there")
    files = sorted(str(path) for path in Path("there/results").glob("*.json"))
    change(Path("there/results/suite-1-fedper.json"), processor="another", torch="3.0")
    code, out, err = fedblocks("--merge", *files, "--out", "here")
    assert code == 0, err
    assert "1 row of suite-1-fedper in here/results/suite-1-fedper.json." in out
    jobs.clear()
    fedblocks("fedper", *ON_TINY, "--out", "here")
    assert jobs == []
    _, out, _ = fedblocks("fedper", *ON_TINY, "--out", "here", "--json")
    (row,) = json.loads(out)["methods"]
    assert row["scores"][0]["machines"] == ["another; torch 3.0"]
    stored = json.loads(Path("here/results/suite-1-local.json").read_text())
    assert "processor" in stored["cells"]["tiny/local"]["seeds"]["0"]


def test_other_numbers_for_the_same_run_are_refused_by_name_and_nothing_is_written(
    fedblocks: Fedblocks,
) -> None:
    fedblocks("fedper", *ON_TINY, "--out", "here")
    fedblocks("fedper", *ON_TINY, "--out", "there")
    for name in ("fedper", "local"):
        change(Path(f"there/results/suite-1-{name}.json"), value=1.0)
    Path("here/results/suite-1-fedavg.json").unlink()
    files = sorted(str(path) for path in Path("there/results").glob("*.json"))
    before = {path: path.read_text() for path in Path("here/results").iterdir()}
    code, _, err = fedblocks("--merge", *files, "--out", "here")
    words = " ".join(err.split())
    assert code == 2 and "the same run of tiny/fedper" in words
    assert "the same run of tiny/local" in words and "tiny/fedavg " not in words
    assert {path: path.read_text() for path in Path("here/results").iterdir()} == before


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"recipe": "pfedmb-table2", "paper": "x"}, "has results of pfedmb-table2, not of suite 1"),
        ({"recipe": "suite-1-local", "paper": "suite 1, manifest 0"}, "with another manifest"),
        ({"cells": {}}, "is not a file of results"),
        (None, "say which files to merge"),
    ],
)
def test_files_of_something_else_are_not_merged(
    fedblocks: Fedblocks, table: dict[str, Any] | None, message: str
) -> None:
    Path("file.json").write_text(json.dumps(table))
    code, _, err = fedblocks("--merge", *(["file.json"] if table is not None else []))
    assert code == 2 and message in " ".join(err.split()) and not Path("results").exists()


def test_a_plan_names_missing_rows_with_defaults_before_tuned_ones_and_runs_nothing(
    fedblocks: Fedblocks, jobs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    fedblocks("fedper", *ON_TINY)
    change(Path("results/suite-1-fedavg.json"), seconds=2.0)
    change(Path("results/suite-1-fedper.json"), seconds=12.0)
    jobs.clear()
    words = ("fedper", "--beds", "tiny,hapt", "--seeds", "3", "--plan")
    code, out, err = fedblocks(*words, "--json")
    assert code == 0, err
    rows = json.loads(out)["rows"]
    everybody = [*REFERENCES, "fedper"]
    # hapt's data are absent; of the tiny bed two of three seeds are missing; it has one round, so
    # all 8 settings are tried in full: 8 + 3 runs
    order = [(row["bed"], row["method"], row["is_tuned"]) for row in rows]
    assert order == [
        (bed, name, is_tuned)
        for is_tuned in (False, True)
        for bed in ("hapt", "tiny")
        for name in everybody
    ]
    by_row = {(row["bed"], row["method"], row["is_tuned"]): row for row in rows}
    own = by_row["tiny", "fedper", False]
    assert (own["seeds"], own["runs"], own["seconds"], own["has_data"]) == (2, 2, 24.0, True)
    assert by_row["tiny", "fedper", True]["runs"] == 8 + 3
    # FedPer took 6 times as long as FedAvg, which takes 3 s on hapt; tries there cost 8 for 3 of
    # 15 rounds, 3 for 5 more, 1 for 7 more
    there = by_row["hapt", "fedper", False]
    assert there["seconds"] == 3 * 3 * 6 and not there["has_data"]
    assert by_row["hapt", "fedper", True]["runs"] == pytest.approx(3 + (24 + 15 + 7) / 15)
    _, out, _ = fedblocks(*words, "--budget", "1m")
    assert "hapt (data absent)" in out and "Next: fedblocks suite local fedavg" in out
    assert jobs == [] and not Path("results/suite-1-heldout-fedavg.json").exists()


def test_a_plan_of_what_is_there_says_that_nothing_is_missing(fedblocks: Fedblocks) -> None:
    fedblocks("local", *ON_TINY, "--tuned")
    _, out, _ = fedblocks("local", *ON_TINY, "--plan")
    assert "Nothing is missing" in out
    _, out, _ = fedblocks("local", "--beds", "tiny", "--seeds", "3", "--plan", "--json")
    runs = {(row["method"], row["is_tuned"]): row["runs"] for row in json.loads(out)["rows"]}
    assert runs["local", True] == 2  # its 8 tries are there
    path = Path("results/suite-1-local.json")
    table = json.loads(path.read_text())
    del table["cells"]["tiny/local, tuned"]["tuning"][5:]
    path.write_text(json.dumps(table))
    _, out, _ = fedblocks("local", "--beds", "tiny", "--seeds", "3", "--plan", "--json")
    runs = {(row["method"], row["is_tuned"]): row["runs"] for row in json.loads(out)["rows"]}
    assert runs["local", True] == 3 + 3  # tries, and all seeds: another setting may be chosen
    _, out, _ = fedblocks("--beds", "tiny", "--lite", "--plan", "--json")
    assert {row["method"] for row in json.loads(out)["rows"]} > {"fedmn", "flow", "modfl"}


def test_the_command_that_a_plan_names_has_the_words_of_the_plan(fedblocks: Fedblocks) -> None:
    Path("mine.py").write_text(MINE)
    words = ["mine", "--code", "mine.py", "--lite", "--out", "a b", "--held-out"]
    code, out, err = fedblocks(*words, "--beds", "tiny", "--seeds", "1", "--plan")
    assert code == 0, err
    (line,) = [line for line in out.splitlines() if line.startswith("Next: ")]
    command = shlex.split(line.removeprefix("Next: fedblocks suite "))
    assert "--code" in command and "--lite" in command and "--held-out" in command
    assert {path.name for path in Path().iterdir()} == {"mine.py"}  # nothing was run
    code, _, err = fedblocks(*command)
    assert code == 0, err
    assert list(Path("a b/results").glob("suite-1-heldout-mine-*.json"))
    _, out, _ = fedblocks(*words, "--beds", "tiny", "--seeds", "1", "--plan")
    assert "Nothing is missing: 1 seed" in out


def test_results_of_an_own_method_need_its_file(
    fedblocks: Fedblocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("mine.py").write_text(MINE)
    fedblocks("mine", "--code", "mine.py", *ON_TINY, "--out", "there")
    (file,) = Path("there/results").glob("suite-1-mine-*.json")
    monkeypatch.delitem(METHODS, "mine")  # as in another process
    code, _, err = fedblocks("--merge", str(file))
    words = " ".join(err.split())
    assert code == 2 and 'results of "mine", which is not a method of the library' in words
    assert "fix: name the file that defines it, too: --code FILE" in words
    code, _, err = fedblocks("--merge", str(file), "--code", "mine.py")
    assert code == 0, err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", 'it has no "recipe"'),
        ("[1, 2]", "it holds no table"),
        ("not json", "it is not JSON"),
        ('{"recipe": "suite-1-local"}', 'it has no "paper"'),
    ],
)
def test_a_file_of_something_else_is_told_in_plain_words(
    fedblocks: Fedblocks, text: str, said: str
) -> None:
    Path("odd.json").write_text(text)
    code, _, err = fedblocks("--merge", "odd.json")
    assert code == 2 and f"odd.json is not a file of results: {said}" in " ".join(err.split())
    Path("results").mkdir()
    Path("odd.json").rename("results/suite-1-odd.json")  # beside those that are asked for
    code, _, err = fedblocks("local", *ON_TINY)
    assert code == 2 and f"suite-1-odd.json is not a file of results: {said}" in " ".join(
        err.split()
    )


@pytest.mark.parametrize("cells", [[1], {"tiny/local": 3}, {"tiny/local": {"tuning": []}}, None])
def test_a_file_with_odd_cells_is_told_in_plain_words(fedblocks: Fedblocks, cells: Any) -> None:
    fedblocks("local", *ON_TINY, "--out", "there")
    table = json.loads(Path("there/results/suite-1-local.json").read_text())
    Path("odd.json").write_text(json.dumps({**table, "cells": cells}))
    code, _, err = fedblocks("--merge", "odd.json")
    said = "odd.json is not a file of results: its cells are not as `fedblocks` writes them"
    assert code == 2 and said in " ".join(err.split())


def test_times_are_those_stored_else_fedavgs_on_the_bed_times_the_methods_factor() -> None:
    def stored(bed: str, method: str, *seconds: float) -> dict[str, Any]:
        seeds = {str(seed): {"seconds": one} for seed, one in enumerate(seconds)}
        return {"cells": {f"{bed}/{method}": {"seeds": seeds}}}

    files = [stored("tiny", "fedavg", 2, 4), stored("tiny", "fedem", 9), stored("hapt", "fedem", 7)]
    times = stored_seconds(files)
    assert times == {("tiny", "fedavg"): 3, ("tiny", "fedem"): 9, ("hapt", "fedem"): 7}
    assert estimate(BEDS["hapt"], "fedem", times) == 7
    assert estimate(BEDS["reddit"], "fedem", times) == 5 * 3  # FedAvg takes 5 s there, about
    assert estimate(BEDS["reddit"], "moon", times) == 5 * 2  # the median of 1 and 3
    assert estimate(TINY, "moon", {}) == 1


def test_the_first_rows_that_fit_are_those_before_the_first_that_does_not() -> None:
    rows = [MissingRow("tiny", str(cost), False, 1, 1, cost, True) for cost in (50, 60, 20, 1)]
    assert fitting_rows(rows, 60, 2) == rows[:2]
    assert fitting_rows(rows, 65, 2) == rows[:3]
