"""Intervals of paired differences: seeds first, then clients within a seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedblocks.core.errors import UserError


@dataclass(frozen=True)
class Interval:
    """A mean and the range that holds it with the given confidence."""

    mean: float
    low: float
    high: float
    confidence: float

    def __str__(self) -> str:
        return f"{self.mean:+.4f} [{self.low:+.4f}, {self.high:+.4f}]"


def bootstrap_interval(
    differences: npt.NDArray[np.float64],
    confidence: float = 0.95,
    draws: int = 10_000,
    seed: int = 0,
) -> Interval:
    """A hierarchical bootstrap interval of the mean of paired differences [seeds,
    clients]; NaN = no such client.
    """
    if differences.ndim != 2 or not np.isfinite(differences).any(1).all():
        raise UserError(
            "differences must be [seeds, clients] with a client in every seed",
            "pair runs of the same clients",
        )
    rng = np.random.Generator(np.random.PCG64(seed))
    seeds = len(differences)
    means = np.zeros(draws)
    for _ in range(seeds):
        rows = differences[rng.integers(0, seeds, draws)]  # [draws, clients]
        means += _resampled_means(rows, rng)
    means /= seeds
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(np.nanmean(differences, 1).mean()), float(low), float(high), confidence)


def _resampled_means(
    rows: npt.NDArray[np.float64], rng: np.random.Generator
) -> npt.NDArray[np.float64]:
    """For each row, the mean of its clients drawn with replacement: [draws]."""
    drawn = np.take_along_axis(rows, rng.integers(0, rows.shape[1], rows.shape), 1)
    there = np.isfinite(drawn)
    if there.all():
        every: npt.NDArray[np.float64] = drawn.sum(1) / rows.shape[1]
        return every
    own = np.nanmean(rows, 1)  # of a draw that met no client
    sums = np.where(there, drawn, 0.0).sum(1)
    means: npt.NDArray[np.float64] = np.where(there.any(1), sums / np.maximum(there.sum(1), 1), own)
    return means
