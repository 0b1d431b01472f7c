"""Clients in an order that puts the similar ones side by side, and on a plane."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def by_similarity(vectors: Floats) -> list[int]:
    """The rows in the order of the leaves of a tree that joins the nearest first
    (average linkage).
    """
    groups = [[row] for row in range(len(vectors))]
    gaps = distances(vectors)
    np.fill_diagonal(gaps, np.inf)
    while len(groups) > 1:
        a, b = sorted(np.unravel_index(gaps.argmin(), gaps.shape))
        share = len(groups[a]) / (len(groups[a]) + len(groups[b]))
        # the later group joins the earlier one
        gaps[a] = gaps[:, a] = share * gaps[a] + (1 - share) * gaps[b]
        gaps[a, a] = np.inf
        gaps = np.delete(np.delete(gaps, b, 0), b, 1)
        groups[a] += groups.pop(b)
    return groups[0] if groups else []


def distances(vectors: Floats) -> Floats:
    """Between every two rows: [rows, rows]."""
    squares = (vectors**2).sum(1)
    gaps: Floats = np.sqrt(
        np.maximum(squares[:, None] + squares[None] - 2 * vectors @ vectors.T, 0.0)
    )
    return gaps


def on_a_plane(vectors: Floats) -> tuple[Floats, list[float]]:
    """Each row's place along the two directions of most variance, [rows, 2], and the
    share of variance of each.
    """
    centred = vectors - vectors.mean(0)
    left, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    places = np.zeros((len(vectors), 2))
    many = min(2, len(sizes))
    places[:, :many] = left[:, :many] * sizes[:many]
    total = float((sizes**2).sum()) or 1.0
    return places, [float(size**2 / total) for size in sizes[:2]]
