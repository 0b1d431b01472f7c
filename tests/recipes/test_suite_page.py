"""The page of the suite, and what is said of methods whose defaults fail."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedblocks.cli import main
from fedblocks.core.errors import UserError
from fedblocks.recipes import recipe_named
from fedblocks.recipes.page import reproduction_page
from fedblocks.recipes.running.merging import merge
from fedblocks.recipes.suite.default_runs import read_default_runs, sentence_about
from fedblocks.recipes.suite.entrants import TUNED, Entrant, recipe_of
from fedblocks.recipes.suite.page import default_runs, suite_page

ROOT = Path(__file__).parents[2]


def store(folder: Path, method: str, right: int, **more: Any) -> None:
    """A results file: two seeds on the digits, so many right answers of ten."""
    run = {"test": f"0:{right}/10", "new": "1:1/2", "bytes": 2_000_000, "seconds": 3.0}
    seeds = {str(seed): {**run, "partition": str(seed)} for seed in range(2)}
    recipe = recipe_of(Entrant(method))
    cells = {f"digits-groups/{method}": {"seeds": seeds, "tuning": []}, **more}
    table = {"recipe": recipe.name, "shape": "suite", "paper": recipe.paper, "cells": cells}
    (folder / f"{recipe.name}.json").write_text(json.dumps(table))


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Three references and FedMN, which is below Local and FedAvg."""
    for method, right in {"local": 5, "fedavg": 6, "fedavg_ft": 8, "fedmn": 4}.items():
        store(tmp_path, method, right)
    return tmp_path


def test_the_page_shows_every_method_with_its_scores_and_says_who_is_below_both(
    results: Path,
) -> None:
    page = suite_page(results)
    assert "2 paired seeds. 6 are the aim" in page and "Not run yet: cifar10-small" in page
    assert "| [fedmn](methods/fedmn.md) | 40.0 ± 0.0 **(v)** | -100.0 ± 0.0 | - |" in page
    says = "- [fedmn](methods/fedmn.md) ends below both Local and FedAvg on 1 of 1 beds: "
    assert says + "digits-groups." in page
    # on its bed: differences -10, -20, -40 points; every client lost answers; 2 MB, 3 s
    line = next(
        line
        for line in page.splitlines()
        if line.startswith("| [fedmn]") and "MB" not in line and "2.00" in line
    )
    assert "-10.0 [-10.0, -10.0] | -20.0 [-20.0, -20.0] | -40.0 [-40.0, -40.0]" in line
    assert line.endswith("| 0 | 100 | 40.0 | 50.0 | 2.00 | 3 | A |")
    assert (
        "## Results tuned" not in page and "held-out variants" not in page.partition("## Beds")[2]
    )


def test_a_failed_method_and_tuned_rows_are_shown(results: Path) -> None:
    run = {"test": "0:9/10", "new": "", "bytes": 1, "seconds": 1.0, "partition": "0"}
    tuned = {f"digits-groups/fedper{TUNED}": {"seeds": {"0": run}, "tuning": []}}
    failed = {"digits-groups/fedper": {"seeds": {}, "tuning": [], "error": "out of memory"}}
    store(results, "fedper", 9, **failed, **tuned)
    page = suite_page(results)
    assert "(failed: out of memory; counts as Local) | 50.0" in page
    assert "## Results tuned on validation data" in page


def test_a_file_of_another_manifest_is_refused(results: Path) -> None:
    path = results / "suite-1-fedmn.json"
    path.write_text(path.read_text().replace("manifest ", "manifest 0"))
    with pytest.raises(UserError, match="another manifest"):
        suite_page(results)


def test_results_of_the_suite_are_no_published_table(results: Path) -> None:
    assert "suite-1" not in reproduction_page(results)


def test_a_sentence_says_on_how_many_beds_defaults_fail(results: Path) -> None:
    runs = default_runs(results)
    ends = "With its defaults it ends below both Local and FedAvg on "
    assert sentence_about("fedmn", runs) == f"{ends}1 of 1 test-beds (digits-groups), 2 seeds."
    assert sentence_about("fedavg_ft", runs) == f"{ends}none of 1 test-beds, 2 seeds."
    assert sentence_about("local", runs) == sentence_about("unknown", runs) == ""


def test_the_seeds_that_a_method_page_names_are_those_of_its_own_rows(results: Path) -> None:
    run = {"test": "0:4/10", "new": "1:1/2", "bytes": 1, "seconds": 1.0, "partition": "0"}
    store(results, "fedper", 4, **{"digits-groups/fedper": {"seeds": {"0": run}, "tuning": []}})
    runs = default_runs(results)
    assert sentence_about("fedper", runs).endswith(" (digits-groups), 1 seed.")
    assert sentence_about("fedmn", runs).endswith(" (digits-groups), 2 seeds.")


def test_results_of_two_machines_are_merged(tmp_path: Path) -> None:
    run = {"value": 50.0, "test": "0:5/10", "new": "", "bytes": 1, "seconds": 1.0, "partition": "0"}
    files = []
    for seed in ("0", "1"):
        folder = tmp_path / seed
        folder.mkdir()
        own = {"seeds": {seed: {**run, "key": seed}}, "tuning": [], "chosen": {}}
        store(folder, "fedper", 5, **{"digits-groups/fedper": own})
        path = folder / "suite-1-fedper.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "quick": False}))
        files.append(path)
    results = merge(files, tmp_path)
    assert set(results.cells["digits-groups/fedper"]["seeds"]) == {"0", "1"}
    assert json.loads((tmp_path / "suite-1-fedper.json").read_text())["shape"] == "suite"


@pytest.mark.parametrize("held_out", [False, True])
def test_a_recipe_of_the_suite_is_known_by_its_name(held_out: bool) -> None:
    recipe = recipe_of(Entrant("fedavg_ft"), held_out)
    again = recipe_named(recipe.name)
    assert (again.name, again.title) == (recipe.name, recipe.title)
    assert recipe_named("suite-1-fedper-0123abcd").name == "suite-1-fedper-0123abcd"
    with pytest.raises(UserError, match='no method "fedpre"'):
        recipe_named("suite-1-fedpre")


def test_the_list_of_methods_says_whose_defaults_fail(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = default_runs(results)
    place = "fedblocks.recipes.suite.default_runs.read_default_runs"
    monkeypatch.setattr(place, lambda: runs)
    with pytest.raises(SystemExit):
        main(["methods"])
    out = capsys.readouterr().out
    assert "fedmn: With its defaults it ends below both Local and FedAvg on 1 of 1" in out
    assert "fedavg_ft: With" not in out
    with pytest.raises(SystemExit):
        main(["methods", "--json"])
    entries = {one["name"]: one["suite"] for one in json.loads(capsys.readouterr().out)}
    assert entries["fedmn"]["below_both"] == ["digits-groups"] and entries["moon"] is None


def test_what_methods_say_is_that_of_the_stored_results() -> None:
    assert read_default_runs() == default_runs(ROOT / "results"), "run python docs/generate.py"
    page = (ROOT / "docs" / "suite.md").read_text()
    assert page == suite_page(ROOT / "results"), "run python docs/generate.py"


def test_the_page_starts_with_what_was_run_and_whose_defaults_fail(tmp_path: Path) -> None:
    beds = ("digits-groups", "hapt", "wisdm51")
    run = {"new": "", "bytes": 1, "seconds": 1.0, "partition": "0"}
    for method, right in {"local": 5, "fedavg": 6, "fedavg_ft": 8, "fedmn": 4}.items():
        own = {"0": {**run, "test": f"0:{right}/10"}}
        cells = {f"{bed}/{method}": {"seeds": own, "tuning": []} for bed in beds}
        store(tmp_path, method, right, **cells)
    top = suite_page(tmp_path).partition("## What a number means")[0]
    assert "Rows with defaults: 12 of 245; tuned: 0 of 245." in top
    assert "**Below both Local and FedAvg on more than 2** of the 3 of 7 beds" in top
    assert "compared on: fedmn (digits-groups, hapt, wisdm51)." in top
    assert "| [fedmn](methods/fedmn.md) | 3 (3 with fewer than 6 seeds) | 0 | digits-gr" in top
    assert "| [moon](methods/moon.md) | 0 | 0 | - |" in top
    assert "| [fedavg_ft](methods/fedavg_ft.md) | 3 (3 with fewer than 6 seeds) | 0 | now" in top
    (tmp_path / "suite-1-fedmn.json").unlink()
    assert "No method ends below both Local and FedAvg on more than 2" in suite_page(tmp_path)


def test_the_page_says_what_machines_a_row_came_from(results: Path) -> None:
    path = results / "suite-1-fedmn.json"
    table = json.loads(path.read_text())
    seeds = table["cells"]["digits-groups/fedmn"]["seeds"]
    seeds["0"] |= {"device": "cpu", "processor": "AMD EPYC, AVX2", "torch": "2.11"}
    seeds["1"] |= {"device": "NVIDIA H200", "processor": "AMD EPYC, AVX2", "torch": "2.13"}
    path.write_text(json.dumps(table))
    page = suite_page(results)
    assert "| A | AMD EPYC, AVX2; torch 2.11 | 0 | 1 |" in page
    assert "| B | NVIDIA H200; torch 2.13 | 0 | 1 |" in page
    assert "| C | a processor that was not noted; torch that was not noted | 3 | 0 |" in page
    scores = page.partition("### digits-groups")[2].partition("## Defaults")[0].splitlines()
    ends = {line.split("]")[0]: line[-6:] for line in scores if line.startswith("| [")}
    assert ends["| [fedmn"].endswith(" A+B |") and ends["| [local"].endswith("| C |")


def test_a_killed_run_is_shown_as_such_and_counts_as_nothing(results: Path) -> None:
    killed = {"seeds": {}, "tuning": [], "killed": "hapt/fedmn, seed 0: killed (signal 9)"}
    run = {"test": "0:5/10", "new": "", "bytes": 1, "seconds": 1.0, "partition": "0"}
    for method, right in {"local": 5, "fedavg": 6, "fedavg_ft": 8}.items():
        own = {"0": {**run, "test": f"0:{right}/10"}}
        store(results, method, right, **{f"hapt/{method}": {"seeds": own, "tuning": []}})
    store(results, "fedmn", 4, **{"hapt/fedmn": killed})
    page = suite_page(results)
    assert "| [fedmn](methods/fedmn.md) | 40.0 ± 0.0 **(v)** | killed, to be run again |" in page
    assert "[fedmn]" not in page.partition("### hapt")[2].partition("## Defaults")[0]
