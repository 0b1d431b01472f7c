"""The lanes job measures what it says."""

from __future__ import annotations

from statistics import median

import pytest

from fedblocks.bench import lanes


def test_it_compares_all_lanes_with_one_of_them(monkeypatch):
    monkeypatch.setattr(lanes, "J1", lanes.replace(lanes.J1, clients=10, examples=2, batch=2))
    found = lanes.measure_lanes("cpu", 1)
    assert found["lanes"] == 12 and len(found["one_seconds"]) == 1
    one, every = median(found["one_seconds"]), median(found["all_seconds"])
    assert found["times_one"] == pytest.approx(every / one)
    assert found["gain"] == pytest.approx(12 * one / every)
