"""Speculation for several lanes at once: their slots side by side, as if they were those of one
server.

A server's share of a round is a hundred small operations, which a device waits for; lanes have it
once, not each. No sum runs over two lanes, so that a NaN of one is none of the others': zero times
NaN is not zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from fedblocks.core.admission import Examination, cap_groups, examine, fitting
from fedblocks.core.aggregate import reduce_groups
from fedblocks.core.parts import Blocks, Params
from fedblocks.core.rules import Rule
from fedblocks.core.state import State
from fedblocks.core.trees import concatenate, split
from fedblocks.core.uploads import Upload, Uploads
from fedblocks.engines.close_round import ClientResults, Results
from fedblocks.engines.speculation import Methods, Speculation, conclude_early, speculate

End = tuple[Methods, State, Results, float]  # what `close_round` takes, for one lane


def speculate_lanes(ends: Sequence[End]) -> list[Speculation | None]:
    """Queue the end of a round of every lane, as `speculate` does for one."""
    if not _are_alike(ends):
        return [speculate(*end) for end in ends]
    states, results = [end[1] for end in ends], [end[2] for end in ends]
    names = list(
        dict.fromkeys(upload.name for own in results[0].values() for upload in own.uploads.values())
    )
    joined = replace(
        states[0],
        server=concatenate([{name: state.server[name] for name in names} for state in states]),
        memory=concatenate([{name: state.memory[name] for name in names} for state in states]),
    )
    groups = {group: _join_uploads([own[group] for own in results], states) for group in results[0]}
    reduced = _split_lanes(reduce_groups(joined, _cap_lanes(groups, ends)), states)
    by_group = [_examine_lanes([own[group] for own in results], groups[group]) for group in groups]
    examinations = [dict(zip(groups, own, strict=True)) for own in zip(*by_group, strict=True)]
    return [
        conclude_early(*end, *own)
        for end, own in zip(ends, zip(reduced, examinations, strict=True), strict=True)
    ]


def _are_alike(ends: Sequence[End]) -> bool:
    """Whether lanes can be taken together: the same groups in all, copies of the right shape."""
    first = ends[0][2]
    fit = all(
        fitting(own.uploads, state.server)
        for _, state, results, _ in ends
        for own in results.values()
    )
    return (
        len(ends) > 1
        and fit
        and bool(first)
        and all(results.keys() == first.keys() for _, _, results, _ in ends)
    )


@dataclass(frozen=True)
class RuleOfEach:
    """The rules of lanes that differ, each for the slots of its own lane."""

    rules: tuple[Rule, ...]
    slots: tuple[int, ...]  # of each lane

    def memory(self, old: Params) -> Blocks:
        lanes = zip(self.rules, split(old, self.slots), strict=True)
        joined: Blocks = concatenate([rule.memory(own) for rule, own in lanes])
        return joined

    def apply(self, memory: Blocks, old: Params, mean: Params) -> tuple[Blocks, Params]:
        trees = [split(tree, self.slots) for tree in (memory, old, mean)]
        ends = [rule.apply(*own) for rule, *own in zip(self.rules, *trees, strict=True)]
        return concatenate([own for own, _ in ends]), concatenate([own for _, own in ends])


def _join_uploads(results: Sequence[ClientResults], states: Sequence[State]) -> Uploads:
    clients = [own.job.data.clients for own in results]
    starts = [sum(clients[:lane]) for lane in range(len(results))]
    joined: Uploads = {}
    for name, first in results[0].uploads.items():
        slots = [_count_slots(state.server, first.name) for state in states]
        joined[name] = _join([own.uploads[name] for own in results], starts, slots)
    return joined


def _join(uploads: Sequence[Upload], starts: Sequence[int], slots: Sequence[int]) -> Upload:
    """The uploads of all lanes as one: each lane has clients of its own, and writes
    slots of its own.
    """
    rules = tuple(upload.rule for upload in uploads)
    alike = all(rule == rules[0] for rule in rules)
    return replace(
        uploads[0],
        rule=rules[0] if alike else RuleOfEach(rules, tuple(slots)),
        ids=torch.cat([upload.ids + start for upload, start in zip(uploads, starts, strict=True)]),
        copies=concatenate([upload.copies for upload in uploads]),
        weights=torch.cat([upload.weights for upload in uploads]),
        lanes=tuple(len(upload.ids) for upload in uploads),
    )


def _cap_lanes(groups: Mapping[str, Uploads], ends: Sequence[End]) -> Mapping[str, Uploads]:
    """The joined uploads with the weights that the caps of their lanes leave."""
    if all(share >= 1 for *_, share in ends):
        return groups
    lanes = [
        cap_groups({group: own.uploads for group, own in results.items()}, share)
        for _, _, results, share in ends
    ]
    return {
        group: {
            name: replace(upload, weights=torch.cat([lane[group][name].weights for lane in lanes]))
            for name, upload in uploads.items()
        }
        for group, uploads in groups.items()
    }


def _examine_lanes(results: Sequence[ClientResults], uploads: Uploads) -> list[Examination]:
    """Look at a group of clients in all lanes; that shapes are right is known."""
    ids = torch.cat([own.job.cohort.ids for own in results])
    limits = torch.cat([own.limits for own in results])
    clients = [len(own.job.ids) for own in results]
    whole = examine(uploads, concatenate([own.private for own in results]), ids, limits)
    lanes = zip(torch.split(whole.ids, clients), torch.split(whole.passed, clients, 1), strict=True)
    return [Examination(whole.checks, *lane, whole) for lane in lanes]


def _split_lanes(after: State, states: Sequence[State]) -> list[State]:
    """The next state of every lane, before methods conclude."""
    ends = [
        replace(state, round=state.round + 1, server=dict(state.server), memory=dict(state.memory))
        for state in states
    ]
    for name, block in after.server.items():
        counts = [_count_slots(state.server, name) for state in states]
        lanes = zip(ends, split(block, counts), split(after.memory[name], counts), strict=True)
        for end, slots, memory in lanes:
            end.server[name], end.memory[name] = slots, memory
    return ends


def _count_slots(server: Blocks, name: str) -> int:
    return len(next(iter(server[name].values())))
