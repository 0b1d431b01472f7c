"""`fedblocks reproduce`: what it prints, what it writes, and how it ends."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedblocks.cli import main
from fedblocks.recipes import RECIPES
from fedblocks.recipes.recipe import Cell, Recipe

from .conftest import DIGITS, tiny

Fedblocks = Callable[..., tuple[int, str, str]]
FAST = {**DIGITS, "rounds": 1}


@pytest.fixture
def fedblocks(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    jobs: list[Any],
) -> Fedblocks:
    """Runs a command in this process, in an empty folder without data sets: exit code,
    output, error stream.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDBLOCKS_DATA", str(tmp_path / "data"))

    def running(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main(["reproduce", *words])
        captured = capsys.readouterr()
        return int(stop.value.code or 0), captured.out, captured.err

    return running


@pytest.fixture
def adds(monkeypatch: pytest.MonkeyPatch) -> Callable[[Recipe], None]:
    """Adds a recipe for the time of a test."""
    return lambda recipe: monkeypatch.setitem(RECIPES, recipe.name, lambda: recipe)


def test_a_table_shows_the_published_number_beside_ours(fedblocks: Fedblocks, adds: Any) -> None:
    adds(
        tiny(
            Cell("digits/fedavg", FAST, published=90.0),
            Cell("digits/local", merged_method("local")),
        )
    )
    code, out, err = fedblocks("tiny", "--seeds", "2", "--jobs", "1", "--cells", "digits/fedavg")
    assert code == 0, err
    assert "90.00" in out and "±" in out and "below" in out and "results/tiny.json" in out
    assert "digits/fedavg, seed 1: " in err and "local" not in out
    stored = json.loads(Path("results/tiny.json").read_text())
    assert set(stored["cells"]) == {"digits/fedavg"} and stored["versions"]["torch"]
    assert {"value", "seconds", "partition", "key"} <= stored["cells"]["digits/fedavg"]["seeds"][
        "0"
    ].keys()
    code, out, _ = fedblocks("tiny", "--seeds", "1", "--json")
    (table,) = json.loads(out)
    assert [row["state"] for row in table["cells"]] == ["done", "done"] and table["finished"]


def test_runs_that_only_chose_values_are_deleted_where_that_is_asked_for(
    fedblocks: Fedblocks, adds: Any
) -> None:
    """Of two rates that are tried; seed 0 of the one that is chosen is the run of its try."""
    adds(tiny(Cell("digits/fedavg", FAST, grid={"method.lr": (0.01, 0.1)})))
    for more, left in (((), 2), (("--tidy",), 1)):
        code, out, err = fedblocks("tiny", "--seeds", "1", "--jobs", "1", *more)
        assert code == 0 and "(1 seed)" in out, err
        assert len(list(Path("runs/reproduce").iterdir())) == left


def test_a_stopped_budget_is_no_failure_and_says_how_to_go_on(
    fedblocks: Fedblocks, adds: Any
) -> None:
    adds(tiny(Cell("digits/fedavg", FAST)))
    code, out, _ = fedblocks("tiny", "--budget", "0s")
    assert (
        code == 0
        and "stopped at the budget; go on with the same command" in out
        and "0 of 3 seeds" in out
    )
    code, out, _ = fedblocks("tiny", "--budget", "5m", "--seeds", "1")
    assert code == 0 and "stopped" not in out and "(1 seed)" in out


def test_a_stand_in_runs_with_quick_under_its_own_name_only(
    fedblocks: Fedblocks, adds: Any
) -> None:
    lacking = {**DIGITS, "data": {"name": "stl10", "clients": 4}}
    adds(tiny(Cell("stl/fedavg", lacking, published=72.0), name="original"))
    instead = {"stand_in_for": "original", "instead_of": ("stl10",)}
    adds(tiny(Cell("digits/fedavg", FAST), name="original-digits", **instead))
    code, out, err = fedblocks("original", "--quick", "--jobs", "1")
    assert code == 0, err
    assert "needs the files of stl10; stand-in: original-digits" in out
    assert "original-digits, a stand-in for original" in out
    assert [path.name for path in Path("results").iterdir()] == ["original-digits-quick.json"]
    code, out, err = fedblocks("original")
    assert code == 3 and "stl10_binary" in err and "fedblocks reproduce original-digits" in err


def test_missing_data_are_told_with_the_files_and_their_place(
    fedblocks: Fedblocks, tmp_path: Path
) -> None:
    code, _, err = fedblocks("pfedmb-table1")
    assert code == 3 and "pfedmb-table1 needs the files of cifar10" in err
    assert "cifar-10-binary.tar.gz" in err and str(tmp_path / "data" / "cifar10") in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pfedmb-tabel2"], 'did you mean "pfedmb-table2"'),
        (
            ["pfedmb-table2", "--cells", "c10-2class-50/fedav"],
            'did you mean "c10-2class-50/fedavg"',
        ),
        (["pfedmb-table2", "--budget", "soon"], "write 540s, 9m or 1h"),
        ([], "fedblocks reproduce --list shows all"),
    ],
)
def test_wrong_names_and_times_bring_the_right_ones(
    fedblocks: Fedblocks, words: list[str], said: str
) -> None:
    code, _, err = fedblocks(*words)
    assert code == 2 and said in err


def test_the_list_names_every_table_with_its_data_and_says_that_costs_are_estimates(
    fedblocks: Fedblocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedblocks.recipes.cost.seconds_per_example", lambda *net: 1e-4)
    code, out, _ = fedblocks("--list", "--json")
    rows = {row["name"]: row for row in json.loads(out)}
    assert code == 0 and rows.keys() == RECIPES.keys()
    table = rows["pfedmb-table2"]
    assert (
        table["data"] == {"cifar10": False, "cifar100": False}
        and "estimate" in table["seconds_are"]
    )
    fedavg = next(cell for cell in table["cells"] if cell["name"] == "c10-2class-15/fedavg")
    assert fedavg["published"] == 89.69 and not fedavg["ready"]
    # 60,000 rows, 0.7 of them trained on, 5 epochs, 200 rounds, 1e-4 s an example; 3 seeds, and 12
    # tries for a fifth of the rounds, 4 of them on to half, 1 of them on to the end
    runs = 3 + 12 / 5 + 4 * 0.3 + 0.5
    assert fedavg["seconds"] == pytest.approx(60_000 * 0.7 * 5 * 200 * runs * 1e-4)


def merged_method(name: str) -> dict[str, Any]:
    return {**FAST, "method": {"name": name, "lr": 0.1, "batch_size": 64}}


def test_results_of_several_machines_are_merged_and_one_name_at_a_time_is_run(
    fedblocks: Fedblocks, adds: Any
) -> None:
    adds(tiny(Cell("digits/fedavg", FAST), Cell("digits/local", merged_method("local"))))
    for place in ("fedavg", "local"):
        assert (
            fedblocks("tiny", "--seeds", "1", "--cells", f"digits/{place}", "--out", place)[0] == 0
        )
    code, out, _ = fedblocks(
        "--merge", "fedavg/results/tiny.json", "local/results/tiny.json", "--out", "both"
    )
    assert code == 0 and "2 cells of tiny are in both/results/tiny.json" in out
    assert set(json.loads(Path("both/results/tiny.json").read_text())["cells"]) == {
        "digits/fedavg",
        "digits/local",
    }
    assert "say which files to merge" in fedblocks("--merge")[2]
    assert "one at a time" in fedblocks("tiny", "tiny")[2]


def test_the_command_tries_the_full_grid_if_asked_to(
    fedblocks: Fedblocks, adds: Any, jobs: list[Any]
) -> None:
    rates = (0.01, 0.05, 0.1, 0.5)
    adds(tiny(Cell("digits/fedavg", {**DIGITS, "rounds": 10}, grid={"method.lr": rates})))
    assert fedblocks("tiny", "--seeds", "1", "--jobs", "1", "--full-grid")[0] == 0
    assert [job["config"]["rounds"] for job in jobs] == [10] * 5
    assert fedblocks("tiny", "--seeds", "1", "--jobs", "1", "--out", "halving")[0] == 0
    assert [job["config"]["rounds"] for job in jobs[5:]] == [2] * 4 + [5] * 2 + [10] * 2
