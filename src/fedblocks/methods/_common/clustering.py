"""Groups of clients by how alike their changes are: deterministic, in the order of the clients."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor


def alike(changes: Tensor, groups: int) -> Tensor:
    """The group of each row, [rows], by the cosine between them; groups are numbered by
    their first row.
    """
    rows = F.normalize(changes.double(), dim=1)
    similarity = (rows @ rows.T).cpu().numpy()
    return torch.from_numpy(complete_linkage(similarity, groups)).to(changes.device)


def complete_linkage(similarity: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.int64]:
    """Merge the two groups whose least similar members are the most similar, until
    `count` groups are left.
    """
    groups = [[i] for i in range(len(similarity))]
    closest = similarity.copy()
    np.fill_diagonal(closest, -np.inf)
    while len(groups) > count:
        a, b = sorted(np.unravel_index(closest.argmax(), closest.shape))
        # the later group is merged into the earlier
        closest[a] = closest[:, a] = np.minimum(closest[a], closest[b])
        closest = np.delete(np.delete(closest, b, 0), b, 1)
        groups[a] += groups.pop(b)
    labels = np.empty(len(similarity), dtype=np.int64)
    for number, members in enumerate(groups):
        labels[members] = number
    return labels
