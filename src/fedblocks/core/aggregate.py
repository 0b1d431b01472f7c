"""The server's side at the end of a round: blocks are reduced, and methods conclude."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from torch import Tensor

from fedblocks.core.conclusions import conclude, join
from fedblocks.core.method import Method
from fedblocks.core.parts import Blocks, Params
from fedblocks.core.reduction import reduce_slots, where_written
from fedblocks.core.rules import Rule
from fedblocks.core.server import Cohort
from fedblocks.core.state import State
from fedblocks.core.trees import in_order
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
    return [join(uploads) for uploads in by_name.values()]
