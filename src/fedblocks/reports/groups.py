"""Hidden groups and found groups: how well do they agree?"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

import numpy as np
import numpy.typing as npt

from fedblocks.methods._common.clustering import complete_linkage

Labels = Sequence[int] | npt.NDArray[np.int64]  # the group of each client


def adjusted_rand(first: Labels, second: Labels) -> float:
    """The adjusted Rand index (Hubert and Arabie, 1985): 1 for the same groups under
    any names, about 0 by chance.
    """
    _, a = np.unique(np.asarray(first), return_inverse=True)
    _, b = np.unique(np.asarray(second), return_inverse=True)
    table = np.zeros((a.max() + 1, b.max() + 1), dtype=np.int64)
    np.add.at(table, (a, b), 1)
    pairs = sum(comb(int(n), 2) for n in table.flat)
    rows, columns = (sum(comb(int(n), 2) for n in table.sum(axis)) for axis in (1, 0))
    expected = rows * columns / comb(len(a), 2)
    most = (rows + columns) / 2
    return 1.0 if most == expected else (pairs - expected) / (most - expected)


def find_groups(vectors: npt.NDArray[np.float64], groups: int) -> npt.NDArray[np.int64]:
    """Clients in this many groups, by the distance between what describes them
    (complete linkage): [clients].
    """
    gaps = vectors[:, None] - vectors[None]  # [clients, clients, numbers]
    return complete_linkage(-np.sqrt((gaps**2).sum(-1)), groups)
