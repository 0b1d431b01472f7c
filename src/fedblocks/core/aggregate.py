"""The server's side at the end of a round: blocks are reduced, and methods conclude."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from fedblocks.core.blocks import server_name
from fedblocks.core.hooks import noting
from fedblocks.core.method import Method
from fedblocks.core.parts import Blocks, Params
from fedblocks.core.reduction import reduce_slots, where_written
from fedblocks.core.rules import Rule
from fedblocks.core.server import Cohort, own_server
from fedblocks.core.state import State
from fedblocks.core.trees import concatenate, in_order, take
from fedblocks.core.uploads import Upload, Uploads

# (old slots, upload) -> means, and which slots were written: `reduce_slots`, or another way to it
Reduce = Callable[[Params, Upload], tuple[Params, Tensor]]


def aggregate(
    methods: Mapping[str, Method],
    state: State,
    groups: Mapping[str, Uploads],
    cohorts: Mapping[str, Cohort],
) -> State:
    """The server's side at the end of a round: reduce every block, apply its rule, let
    methods conclude.
    """
    return conclude(methods, state, reduce_groups(state, groups), groups, cohorts)


def reduce_groups(
    state: State, groups: Mapping[str, Uploads], reduce: Reduce | None = None
) -> State:
    """The next state before methods conclude: every block reduced, and its rule applied."""
    server, memory = dict(state.server), dict(state.memory)
    for upload in merge_groups(groups):
        if len(upload.ids):
            name = upload.name
            old = state.server[name]
            mean, written = (reduce or reduce_slots)(old, upload)
            memory[name], server[name] = in_order(
                _apply_rule(upload.rule, state.memory[name], old, mean, written)
            )
    return replace(state, round=state.round + 1, server=server, memory=memory)


def conclude(
    methods: Mapping[str, Method],
    before: State,
    after: State,
    groups: Mapping[str, Uploads],
    cohorts: Mapping[str, Cohort],
) -> State:
    """What each method makes of its blocks once they are reduced."""
    server = dict(after.server)
    for group, uploads in groups.items():
        layout = methods[group].blocks()
        old, new = own_server(layout, before.server), own_server(layout, server)
        with noting(methods[group], "conclude"):
            concluded = methods[group].conclude(new, old, uploads, cohorts[group])
        server |= {
            server_name(n, layout[n]): v if v is new.get(n) else in_order(v)
            for n, v in concluded.items()
        }
    return replace(after, server=server)


def _apply_rule(
    rule: Rule, memory: Blocks, old: Params, mean: Params, written: Tensor
) -> tuple[Blocks, Params]:
    new_memory, new = rule.apply(memory, old, mean)
    if new is mean and not new_memory:
        return new_memory, new
    kept = {
        n: {k: where_written(written, v, memory[n][k]) for k, v in block.items()}
        for n, block in new_memory.items()
    }
    return kept, {k: where_written(written, v, old[k]) for k, v in new.items()}


def merge_groups(groups: Mapping[str, Uploads]) -> list[Upload]:
    """Uploads to the same server name as one, clients in the order of their ids."""
    by_name: dict[str, list[Upload]] = {}
    for uploads in groups.values():
        for upload in uploads.values():
            by_name.setdefault(upload.name, []).append(upload)
    return [
        uploads[0] if len(uploads) == 1 else _concatenate(uploads) for uploads in by_name.values()
    ]


def _concatenate(uploads: list[Upload]) -> Upload:
    ids = torch.cat([upload.ids for upload in uploads])
    order = ids.argsort()
    copies = take(concatenate([upload.copies for upload in uploads]), order)
    lanes = tuple(map(sum, zip(*(upload.lanes for upload in uploads), strict=True)))
    weights = torch.cat([upload.weights for upload in uploads])[order]
    return replace(uploads[0], ids=ids[order], copies=copies, weights=weights, lanes=lanes)
