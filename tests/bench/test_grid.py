"""The grid job measures what it says."""

from __future__ import annotations

import pytest

from fedblocks.bench import grid
from fedblocks.bench.page import grid as sentence


def test_the_runs_of_the_grid_are_the_same_one_after_another_and_as_lanes(monkeypatch):
    monkeypatch.setattr(grid, "J1", grid.replace(grid.J1, clients=10, batch=2))
    monkeypatch.setattr(grid, "EXAMPLES", {"cpu": 4})
    monkeypatch.setattr(grid, "RATES", (0.01, 0.02))
    tables, timed = [], grid._time
    monkeypatch.setattr(grid, "_time", lambda *own: tables.append(timed(*own)) or tables[-1])
    actual = grid.measure_grid("cpu")
    assert (actual["runs"], actual["rounds"]) == (2, 3)
    assert tables[0][2] == tables[1][2] == actual["accuracies"] != [0, 0]
    assert actual["gain"] == pytest.approx(actual["seconds_alone"] / actual["seconds_lanes"])
    assert 0 < actual["seconds_in_rounds"] < actual["seconds_lanes"]
    assert "J15: 2 runs of 3 rounds take" in sentence(actual)
