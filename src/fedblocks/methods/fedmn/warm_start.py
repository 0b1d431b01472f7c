"""A routing head that begins with the groups which the clients' first updates show.

In the first round all gates are open, so all clients change the same modules. The server groups
clients whose changes are alike, gives every group modules of its own, and fits the routing head to
that: a regression from what the router sees of a client to the gates of its group. From then on the
head learns as ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from fedblocks.core.arithmetic import flat
from fedblocks.core.parts import Blocks, is_statistic
from fedblocks.core.uploads import Uploads

CERTAIN = 3.0  # logit of a gate of a group's path; the others have its negative
RIDGE = 0.1  # of the mean squared length of what the router sees of a client


def module_changes(before: Blocks, uploads: Uploads, names: Sequence[str]) -> Tensor:
    """What each client changed of all modules: [clients, parameters]."""
    changes = [
        {k: v - before[name][k] for k, v in uploads[name].copies.items() if not is_statistic(k)}
        for name in names
    ]
    return torch.cat([flat(own) for own in changes], 1)


def path_logits(groups: int, modules: Sequence[int], like: Tensor) -> Tensor:
    """Certain gates for each group, which open the edges between its own modules: [groups,
    edges]. Modules go round among the groups; where there are fewer, groups share one.
    """
    numbers = torch.arange(groups, device=like.device)[:, None]
    owned = []  # [groups, modules] for each layer, the prediction last
    for count in (*modules, 1):
        sharing = min(groups, count)
        module = torch.arange(count, device=like.device)
        owned.append(module % sharing == numbers % sharing)
    edges = [(b[:, :, None] & a[:, None, :]).flatten(1) for a, b in pairwise(owned)]
    opened = torch.cat(edges, 1).to(like.dtype)
    return CERTAIN * (2 * opened - 1)


def fit_head(seen: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Weight [edges, width] and bias [edges] of the linear layer that takes what was seen,
    [clients, width], to the wanted logits, [clients, edges]: ridge regression.
    """
    middle, mean = seen.mean(0), wanted.mean(0)
    rows = seen - middle
    products = rows @ rows.T  # [clients, clients]
    ridge = RIDGE * products.diagonal().mean().clamp(min=1e-12)
    share = torch.linalg.solve(products + ridge * torch.eye(len(rows)).to(rows), wanted - mean)
    weight = share.T @ rows
    return weight, mean - weight @ middle
