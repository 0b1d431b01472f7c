"""Results of several machines as one, and what is known of the code that made them."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedblocks.core.errors import UserError
from fedblocks.recipes import RECIPES
from fedblocks.recipes.recipe import Cell
from fedblocks.recipes.running import provenance
from fedblocks.recipes.running.merging import merge
from fedblocks.recipes.running.reproduce import carry_out

from .conftest import DIGITS, asked, tiny


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Two cells, of which each machine has done one, or both with other seeds."""
    grid = {"method.lr": (0.05, 0.5)}
    actual = tiny(
        Cell("digits/fedavg", DIGITS, grid=grid),
        Cell("digits/fedper", {**DIGITS, "method": {"name": "fedper"}}),
    )
    monkeypatch.setitem(RECIPES, "tiny", lambda: actual)
    return actual


def made(recipe: Any, folder: Path, cells: slice, seeds: int) -> Path:
    reproduction = asked(recipe, folder, seeds=seeds)
    object.__setattr__(reproduction, "cells", recipe.cells[cells])
    assert carry_out(reproduction)
    return reproduction.results.path


def test_merged_results_hold_everything_and_nothing_is_run_again(
    recipe: Any, tmp_path: Path, jobs: list[Any]
) -> None:
    one = made(recipe, tmp_path / "one", slice(0, 1), 2)
    other = made(recipe, tmp_path / "other", slice(0, 2), 1)
    results = merge([one, other], tmp_path / "all" / "results")
    stored = json.loads(results.path.read_text())["cells"]
    assert list(stored) == ["digits/fedavg", "digits/fedper"]
    assert (
        set(stored["digits/fedavg"]["seeds"]) == {"0", "1"}
        and len(stored["digits/fedavg"]["tuning"]) == 2
    )
    before = len(jobs)
    assert carry_out(asked(recipe, tmp_path / "all", seeds=1)) and len(jobs) == before
    merge([other], tmp_path / "all" / "results")  # once more changes nothing
    assert json.loads(results.path.read_text())["cells"] == stored


def test_a_merged_file_names_the_devices_and_versions_of_its_numbers_not_of_the_merging_machine(
    recipe: Any, tmp_path: Path, jobs: list[Any]
) -> None:
    one = made(recipe, tmp_path / "one", slice(0, 1), 1)
    other = made(recipe, tmp_path / "other", slice(1, 2), 1)
    for path, device, torch in ((one, "a GPU", "2.11.0"), (other, "a CPU", "2.13.0")):
        table = json.loads(path.read_text())
        for entry in table["cells"].values():
            for number in (*entry["tuning"], *entry["seeds"].values()):
                number |= {"device": device, "torch": torch, "code": "0.0.7+abc"}
        path.write_text(json.dumps(table))
    stored = json.loads(merge([one, other], tmp_path / "all").path.read_text())
    assert stored["devices"] == ["a GPU", "a CPU"]
    assert stored["versions"] == {"fedblocks": "0.0.7", "torch": "2.11.0 and 2.13.0"}


@pytest.mark.parametrize(
    "other",
    [{"value": -1.0}, {"partition": "0" * 64}],  # equal numbers of other data are no confirmation
    ids=["value", "partition"],
)
def test_other_numbers_for_the_same_run_are_an_error_that_names_both_files(
    other: dict[str, Any], recipe: Any, tmp_path: Path, jobs: list[Any]
) -> None:
    one = made(recipe, tmp_path / "one", slice(0, 1), 1)
    table = json.loads(one.read_text())
    aside = {"seconds": 99.0, "device": "another", "warning": "odd"}
    table["cells"]["digits/fedavg"]["seeds"]["0"] |= aside
    (tmp_path / "other.json").write_text(json.dumps(table))
    merge([one, tmp_path / "other.json"], tmp_path / "fine")  # time and place may differ
    table["cells"]["digits/fedavg"]["seeds"]["0"] |= other
    (tmp_path / "other.json").write_text(json.dumps(table))
    with pytest.raises(
        UserError,
        match=r"one/results/tiny.json and .*other.json have other "
        r"numbers",
    ):
        merge([one, tmp_path / "other.json"], tmp_path / "all")
    assert not (tmp_path / "all").exists()


def test_a_seed_that_ran_with_other_values_is_an_error(
    recipe: Any, tmp_path: Path, jobs: list[Any]
) -> None:
    one = made(recipe, tmp_path / "one", slice(0, 1), 1)
    table = json.loads(one.read_text())
    table["cells"]["digits/fedavg"]["seeds"]["0"]["key"] = "another"
    (tmp_path / "other.json").write_text(json.dumps(table))
    with pytest.raises(UserError, match="ran seed 0 of digits/fedavg with other settings"):
        merge([one, tmp_path / "other.json"], tmp_path / "all")


def test_files_of_other_recipes_or_of_none_are_refused(recipe: Any, tmp_path: Path) -> None:
    for name, quick in (("a", False), ("b", True)):
        (tmp_path / name).write_text(json.dumps({"recipe": "tiny", "quick": quick, "cells": {}}))
    with pytest.raises(UserError, match="different recipes"):
        merge([tmp_path / "a", tmp_path / "b"], tmp_path)
    (tmp_path / "c").write_text('{"recipe": "tiny"}')
    with pytest.raises(UserError, match="not a file of results"):
        merge([tmp_path / "c"], tmp_path)


def checkout(root: Path) -> Path:
    """A package in a checkout that stands at a packed branch, and a further work tree
    at a loose one.
    """
    for tree in ("main", "tree"):
        (root / tree / "src" / "fedblocks").mkdir(parents=True)
        (root / tree / "src" / "fedblocks" / "__init__.py").touch()
    git = root / "main" / ".git"
    (git / "worktrees" / "tree").mkdir(parents=True)
    (git / "refs" / "heads").mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    (git / "packed-refs").write_text(f"# pack-refs\n{'a' * 40} refs/heads/main\n")
    (git / "refs" / "heads" / "side").write_text("b" * 40 + "\n")
    (git / "worktrees" / "tree" / "HEAD").write_text("ref: refs/heads/side\n")
    (git / "worktrees" / "tree" / "commondir").write_text("../..\n")
    (root / "tree" / ".git").write_text(f"gitdir: {git / 'worktrees' / 'tree'}\n")
    return root


def test_the_commit_is_read_from_the_packages_own_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(provenance.COMMIT, raising=False)
    root = checkout(tmp_path)
    for tree, digit in (("main", "a"), ("tree", "b")):
        assert provenance.commit(root / tree) == digit * 40
    (root / "main" / ".git" / "HEAD").write_text("ref: refs/../../../secret\n")
    assert provenance.commit(root / "main") is None
    monkeypatch.setenv(provenance.COMMIT, "0123456789abcdef")
    assert provenance.commit() == "0123456789abcdef"
    monkeypatch.setenv(provenance.COMMIT, "; rm")
    assert provenance.commit(root / "main") is None


def test_a_checkout_is_the_folder_with_the_project_file() -> None:
    assert (provenance.ROOT / "pyproject.toml").exists()
    assert (provenance.ROOT / "src" / "fedblocks" / "recipes").is_dir()
