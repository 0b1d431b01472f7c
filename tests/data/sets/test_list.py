"""`fedblocks data list`: every set, whether its files are found, and where they are or would go."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedblocks.cli.data import app
from fedblocks.data import DATASETS
from fedblocks.data.sets.files import StoredSet


def test_the_list_says_of_every_stored_set_where_its_files_are_or_would_go(
    data_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(data_folder / "mnist_writers.npz", X=np.zeros(1))
    entries = json.loads(CliRunner().invoke(app, ["list", "--json"]).stdout)
    listed = {entry["name"]: entry for entry in entries if "where" in entry}
    assert listed.keys() == {
        name for name, actual in DATASETS.items() if isinstance(actual, StoredSet)
    }
    assert [name for name, entry in listed.items() if entry["found"]] == ["mnist_writers"]
    assert listed["cifar10"]["where"] == str(data_folder / "cifar10")
    monkeypatch.chdir(data_folder)
    monkeypatch.setenv("FEDBLOCKS_DATA", ".")  # short enough for one line of the table
    monkeypatch.setenv("COLUMNS", "160")
    shown = CliRunner().invoke(app, ["list"]).stdout
    assert "compact in ." in shown and "missing: would go to stl10" in shown
