"""A name that becomes a folder is one folder, inside the one that was asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fedblocks as fb
from fedblocks.core.folder_names import check_folder_name
from fedblocks.runs.grids.grid import cell_folder, read_cells
from fedblocks.runs.run import free_folder

WRONG: list[Any] = ["", ".", "..", "../../evil", "a/b", "a\\b", "/tmp/x", "a\0b", "a\nb", " a"]
WRONG += [".hidden", "m" * 300, "C:x", 'say "x"', "*", 1, None]


@pytest.mark.parametrize("name", WRONG)
def test_a_name_that_is_no_folder_is_refused(name: Any) -> None:
    with pytest.raises(fb.UserError, match="cannot be the name of a method") as error:
        check_folder_name(name, "a method")
    assert len(error.value.message) < 150 and "/" in error.value.fix


@pytest.mark.parametrize("name", ["fedavg", "FedAvg 0.1", "größer", "lr=0.1", "a.b", "方法", "-x"])
def test_other_names_are_taken(name: str) -> None:
    assert check_folder_name(name, "a method") == name


@pytest.mark.parametrize("name", ["../../evil", "", "a/b"])
def test_a_comparison_writes_nothing_for_such_a_name(name: str, tmp_path: Path) -> None:
    net, data = fb.small_net(), fb.small_federation()
    methods = {"fine": fb.FedAvg(net, lr=0.1), name: fb.FedAvg(net, lr=0.2)}
    with pytest.raises(fb.UserError, match="cannot be the name of a method"):
        fb.compare(methods, data, rounds=1, seeds=1, out=tmp_path / "deep" / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_comparison_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(fb.UserError, match="no method to compare"):
        fb.compare({}, fb.small_federation(), rounds=1, seeds=1, out=tmp_path / "out")


def test_the_plan_of_a_stranger_leads_to_no_other_folder(tmp_path: Path) -> None:
    plan = 'seed = 0\n[data]\nname = "python"\n[compare]\nmethods = ["../../evil"]\nseeds = 1\n'
    (tmp_path / "compare.toml").write_text(plan)
    with pytest.raises(fb.UserError, match="cannot be the name of a method"):
        [cell_folder(tmp_path, *cell) for cell in read_cells(tmp_path)]


def test_a_run_without_a_folder_goes_below_runs() -> None:
    assert free_folder("fedavg-digits").parts == ("runs", "fedavg-digits-001")
    with pytest.raises(fb.UserError, match="cannot be the name of a run"):
        free_folder("../x-digits")
