"""Groups of clients by how alike their changes are: deterministic, in the order of the clients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Count = int | Literal["auto"]

MOST = 10  # groups, where their number is not said
ROTATIONS = 49  # a grouping by chance is the clearest of all 50 once in 50 times


def alike(changes: Tensor, groups: Count, most: int = MOST) -> Tensor:
    """The group of each row, [rows], by the cosine between them; groups are numbered by
    their first row. "auto": as many groups as there are, up to `most`.
    """
    rows = F.normalize(changes.double())
    similarity = (rows @ rows.T).cpu().numpy()  # [rows, rows]
    if groups == "auto":
        labels = natural_groups(similarity, most)
    else:
        labels = complete_linkage(similarity, groups)
    return torch.from_numpy(labels).to(changes.device)


def complete_linkage(similarity: Floats, count: int) -> Ints:
    """Merge the two groups whose least similar members are the most similar, until
    `count` groups are left.
    """
    return next(labels for labels in merges(similarity) if labels.max(initial=0) < count)


def merges(similarity: Floats) -> Iterator[Ints]:
    """The group of each row, from one group each to one group for all."""
    first = np.arange(len(similarity))  # the first row of each row's group
    closest = similarity.copy()
    np.fill_diagonal(closest, -np.inf)
    yield first.copy()
    for _ in range(len(similarity) - 1):
        a, b = sorted(np.unravel_index(closest.argmax(), closest.shape))
        closest[a] = closest[:, a] = np.minimum(closest[a], closest[b])
        closest[b] = closest[:, b] = -np.inf  # the later group is merged into the earlier
        first[first == b] = a
        yield np.unique(first, return_inverse=True)[1]


def natural_groups(similarity: Floats, most: int) -> Ints:
    """The clearest grouping of complete linkage, by its mean silhouette; one group if
    rows without groups look as clear.

    Rows without groups are these rows, rotated: combinations of them, with the same mean and the
    same covariance. Rotations are the same in every run.
    """
    clarity, labels = clearest(similarity, most)
    rng = np.random.Generator(np.random.PCG64(0))
    for _ in range(ROTATIONS if clarity > 0 else 0):
        if clearest(rotate_rows(similarity, rng), most)[0] >= clarity:
            return np.zeros_like(labels)
    return labels


def clearest(similarity: Floats, most: int) -> tuple[float, Ints]:
    """The highest mean silhouette of 2 to `most` groups, and that grouping; 0 for one
    group, which two rows always are.
    """
    rows = len(similarity)
    best, grouping = 0.0, np.zeros(rows, dtype=np.int64)
    for labels in merges(similarity):
        if 2 <= labels.max(initial=0) + 1 <= min(most, rows - 1):
            clarity = silhouette(1 - similarity, labels)
            if clarity > best:
                best, grouping = clarity, labels
    return best, grouping


def silhouette(distance: Floats, labels: Ints) -> float:
    """The mean silhouette (Rousseeuw, 1987): 1 where rows are far nearer to their own
    group than to the next; a row alone in its group counts 0.
    """
    member = np.eye(labels.max() + 1)[labels]  # [rows, groups]
    sizes = member.sum(0)
    own = member.astype(bool)
    total = distance @ member  # [rows, groups]
    inside = total[own] / np.maximum(sizes[labels] - 1, 1)  # a row is no neighbour of its own
    outside = np.where(own, np.inf, total / sizes).min(1)
    larger = np.maximum(inside, outside)
    gain = np.divide(outside - inside, larger, out=np.zeros_like(larger), where=larger > 0)
    return float(np.where(sizes[labels] == 1, 0.0, gain).mean())


def rotate_rows(similarity: Floats, rng: np.random.Generator) -> Floats:
    """The cosines between rows that are mixed by a random rotation which keeps their mean."""
    rows = len(similarity)
    ones = np.ones((rows, 1))
    basis = np.linalg.qr(np.hstack([ones, np.eye(rows)[:, 1:]]))[0][:, 1:]  # across the mean
    turn, sign = np.linalg.qr(rng.standard_normal((rows - 1, rows - 1)))
    turn *= np.sign(np.diag(sign))  # makes all rotations equally likely
    rotation = ones @ ones.T / rows + basis @ turn @ basis.T
    products = rotation @ similarity @ rotation.T
    lengths = np.sqrt(np.maximum(np.diag(products), 1e-300))
    cosines: Floats = products / np.outer(lengths, lengths)
    return cosines
