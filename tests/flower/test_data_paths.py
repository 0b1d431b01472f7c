"""What `client.toml` names lies beside it, wherever the client was started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedblocks.flower.client.data_paths import start_paths_at
from fedblocks.flower.client.prepare import data_of
from fedblocks.flower.hosts.folders import ClientHost


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A client's folder with its data, of 10 rows; another file of that name lies elsewhere."""
    for name, rows in (("ward-a", 10), ("elsewhere", 20)):
        (tmp_path / name).mkdir()
        x = np.arange(3.0 * rows).reshape(rows, 3)
        np.savez(tmp_path / name / "data.npz", x=x, y=np.arange(rows) % 2)
    return tmp_path / "ward-a"


def rows_at(path: str, folder: Path) -> int:
    data = {"name": "npz", "clients": 1, "options": {"path": path}, "split": [0.6, 0.2, 0.2]}
    host = ClientHost(federation="f", server="127.0.0.1:1", clients=(0,), data=data)
    return len(data_of(host, folder).y)


def test_a_relative_path_starts_at_the_file_and_an_absolute_one_stays(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent / "elsewhere")
    assert rows_at("data.npz", folder) == 10
    assert rows_at("../elsewhere/data.npz", folder) == 20
    assert rows_at(str(folder.parent / "elsewhere" / "data.npz"), folder) == 20
    monkeypatch.chdir(folder.parent)
    assert rows_at("data.npz", Path("ward-a")) == 10  # the folder may be named as one likes


@pytest.mark.parametrize(
    ("options", "placed"),
    [
        ({"path": "a", "label": "path"}, {"path": "/f/a", "label": "path"}),
        (
            {"train_file": "a", "files": ["b", "/c"]},
            {"train_file": "/f/a", "files": ["/f/b", "/c"]},
        ),
        ({"profile": "a", "path": None}, {"profile": "a", "path": None}),
        ({}, {}),
    ],
)
def test_options_that_name_a_place_are_placed_and_no_others(
    options: dict[str, Any], placed: dict[str, Any]
) -> None:
    data = {"name": "mine", "options": options}
    assert start_paths_at(Path("/f"), data) == {"name": "mine", "options": placed}
    assert start_paths_at(Path("/f"), {"name": "digits"}) == {"name": "digits"}
