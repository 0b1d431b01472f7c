"""The lanes job measures what it says."""

from __future__ import annotations

from statistics import median

import pytest

from fedblocks.bench import lanes


def test_it_compares_all_lanes_with_one_of_them(monkeypatch):
    monkeypatch.setattr(lanes, "J1", lanes.replace(lanes.J1, clients=10, examples=2, batch=2))
    actual = lanes.measure_lanes("cpu", 1)
    assert actual["lanes"] == 12 and len(actual["one_seconds"]) == 1
    one, every = median(actual["one_seconds"]), median(actual["all_seconds"])
    assert actual["times_one"] == pytest.approx(every / one)
    assert actual["gain"] == pytest.approx(12 * one / every)
