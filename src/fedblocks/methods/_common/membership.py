"""What IFCA, Clustered FL and ModFL share: every client belongs to one slot of a pool, trains a
copy of it, writes it.

A home is the number of a client's slot, -1 where it has none yet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from fedblocks.core.arithmetic import each, flat, pick
from fedblocks.core.blocks import Selection
from fedblocks.core.client import Client
from fedblocks.core.parts import Blocks, Params, Value, is_statistic
from fedblocks.core.reduction import reduce_slots
from fedblocks.core.server import Cohort
from fedblocks.core.uploads import Upload, Uploads
from fedblocks.methods._common.clustering import MOST, Count, alike

Model = Callable[[Params, Tensor], Tensor]  # (the copy in one slot, inputs) -> logits


def no_home(dtype: torch.dtype) -> Value:
    """The home of a client that has none yet."""
    return Value(torch.full((1,), -1, dtype=dtype))


def send_home(home: Tensor, cohort: Cohort, slots: int) -> Selection:
    """Send each client its slot; all `slots` that are in use, if a client of the round
    with data has no home yet.
    """
    own = home[cohort.ids]  # [clients], of [population]
    if slots > 1 and bool(((own < 0) & (cohort.sizes > 0)).any()):
        return Selection(torch.arange(slots, device=own.device).expand(len(cohort), -1))
    return Selection(own.clamp(min=0)[:, None])


def best_slot(model: Model, stack: Params, client: Client) -> Tensor:
    """The slot with the lowest loss on the client's training data: []."""
    logits = each(model, stack, client.x)  # [slots, examples, ...]
    return torch.stack([client.total_loss(rows) for rows in logits]).argmin()


def take_copy(model: Model, stack: Params, home: Tensor, client: Client) -> tuple[Tensor, Params]:
    """The client's home, [1], and its slot's copy; who has no home and is sent several
    slots takes the best.
    """
    if len(next(iter(stack.values()))) == 1:  # there is no choice
        return home, {name: value[0] for name, value in stack.items()}
    chosen = torch.where(home < 0, best_slot(model, stack, client).to(home.dtype), home)
    return chosen, pick(stack, chosen.long())


def membership(home: Tensor, slots: int, client: Client) -> Tensor:
    """1 for the client's slot, 0 for all others: [slots]."""
    return (torch.arange(slots, device=client.size.device) == home).to(client.size.dtype)


def average_members(before: Params, upload: Upload, home: Tensor, slots: int) -> Params:
    """Every slot as the mean of its members' copies, by their weights; a slot of nobody stays as it
    was.

    before: [slots, ...], home: [clients], at least 0.
    """
    weights = F.one_hot(home, slots) * upload.weights.sum(1, keepdim=True)  # [clients, slots]
    return reduce_slots(before, replace(upload, weights=weights))[0]


def first_changes(before: Blocks, uploads: Uploads, *names: str) -> Tensor:
    """What each client changed of these blocks, where all were sent the first slot:
    [clients, parameters].
    """
    changes = [
        {k: v - before[name][k][0] for k, v in uploads[name].copies.items() if not is_statistic(k)}
        for name in names
    ]
    return torch.cat([flat(own) for own in changes], 1)


def group_clients(changes: Tensor, weights: Tensor, groups: Count, most: int = MOST) -> Tensor:
    """Groups of clients whose changes, [clients, parameters], are alike: [clients]; the
    group with the most weight is the first.

    Equal weights are told apart by the groups' changes, so that the numbers of clients never
    matter.
    """
    labels = alike(changes, groups, most)
    members = [labels == label for label in range(int(labels.max()) + 1)]
    heaviness = [(float(weights[m].sum()), float(changes[m].sum(0).norm())) for m in members]
    order = sorted(range(len(members)), key=lambda label: heaviness[label], reverse=True)
    return torch.tensor(order, device=labels.device).argsort()[labels]
