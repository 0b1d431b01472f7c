"""Intervals of paired differences."""

from __future__ import annotations

import numpy as np
import pytest

from fedblocks.core.errors import UserError
from fedblocks.reports.intervals import bootstrap_interval
from fedblocks.reports.student import QUANTILES, half_width


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


def test_every_seed_counts_the_same_however_many_clients_it_has():
    values = np.array([[1.0, np.nan, np.nan], [3.0, 5.0, 7.0]])  # means 1 and 5
    assert bootstrap_interval(values).mean == 3.0


def test_students_quantiles_are_those_of_the_distribution():
    """The interval of n values that differ by the standard deviation 1 is t(n - 1) / sqrt(n)."""
    scipy = pytest.importorskip("scipy.stats", reason="pip install 'fedblocks[analysis]'")
    assert pytest.approx(scipy.t.ppf(0.975, range(1, 11)), abs=5e-4) == QUANTILES
    for many in range(2, 200):
        values = np.linspace(0, 1, many) / np.linspace(0, 1, many).std(ddof=1)
        wanted = scipy.t.ppf(0.975, many - 1) / np.sqrt(many)
        assert half_width(values.tolist()) == pytest.approx(wanted, rel=0.01)


def test_the_bootstrap_draws_seeds_and_then_clients_of_a_seed():
    """The variance of the mean: that of seeds over their number, and that of clients over all."""
    rng = np.random.Generator(np.random.PCG64(1))
    values = 3 * rng.normal(size=(8, 1)) + rng.normal(size=(8, 50))
    actual = bootstrap_interval(values, draws=20_000, seed=3)
    variance = values.mean(1).var() / 8 + values.var(1).mean() / (8 * 50)
    assert actual.mean == pytest.approx(values.mean())
    assert (actual.high - actual.low) / 2 == pytest.approx(1.96 * np.sqrt(variance), rel=0.05)
    narrow = bootstrap_interval(values, confidence=0.5, draws=20_000, seed=3)
    assert narrow.confidence == 0.5 and actual.confidence == 0.95
    assert (narrow.high - narrow.low) / 2 == pytest.approx(0.6745 * np.sqrt(variance), rel=0.05)
    assert bootstrap_interval(values, draws=500, seed=4) != bootstrap_interval(values, draws=500)
    assert bootstrap_interval(values, draws=500, seed=4) == bootstrap_interval(
        values, draws=500, seed=4
    )


def test_clients_that_are_missing_in_a_seed_do_not_pull_its_mean():
    """Half of the places are empty: the spread is that of as many clients as there are."""
    values = np.array([[0.0, 1.0] * 20 + [np.nan] * 40])
    actual = bootstrap_interval(values, draws=20_000)
    assert actual.mean == 0.5
    # about 40 of 80 draws are clients: a standard error of 0.5 / sqrt(40)
    assert (actual.high - actual.low) / 2 == pytest.approx(1.96 * 0.5 / np.sqrt(40), rel=0.08)
