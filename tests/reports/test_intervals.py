"""Intervals of paired differences."""

from __future__ import annotations

import numpy as np
import pytest

from fedblocks.core.errors import UserError
from fedblocks.reports.intervals import bootstrap_interval


def test_a_constant_difference_has_an_interval_of_no_width():
    actual = bootstrap_interval(np.full((3, 5), 0.25))
    assert (actual.mean, actual.low, actual.high) == (0.25, 0.25, 0.25)


def test_an_interval_is_wider_where_seeds_differ_than_where_only_clients_do():
    rng = np.random.Generator(np.random.PCG64(0))
    noise = rng.normal(size=(6, 40))
    seeds = np.linspace(-1, 1, 6)[:, None]
    centred = noise - noise.mean()
    calm = bootstrap_interval(centred)
    rough = bootstrap_interval(centred + 2 * seeds)
    assert rough.high - rough.low > 2 * (calm.high - calm.low)


def test_an_interval_of_clients_covers_the_truth_as_often_as_it_says():
    """One seed of 60 clients, normal differences of mean 1: 95 % intervals hold 1 in
    about 95 % of 400 trials.
    """
    rng = np.random.Generator(np.random.PCG64(2))
    trials = [
        bootstrap_interval(1 + rng.normal(size=(1, 60)), draws=800, seed=i) for i in range(400)
    ]
    assert np.mean([t.low <= 1 <= t.high for t in trials]) == pytest.approx(0.95, abs=0.03)


def test_missing_clients_are_left_out_and_missing_seeds_are_refused():
    values = np.array([[1.0, np.nan, 3.0], [1.0, 2.0, 3.0]])
    assert bootstrap_interval(values).mean == 2.0
    with pytest.raises(UserError, match="a client in every seed"):
        bootstrap_interval(np.array([[np.nan, np.nan], [1.0, 2.0]]))
