"""The end of a round, the server's side: admit what clients send, cap their weights,
reduce, conclude.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedblocks.core.admission import Refusal, admit, cap_groups
from fedblocks.core.aggregate import reduce_groups
from fedblocks.core.conclusions import conclude
from fedblocks.core.method import Method
from fedblocks.core.parts import Blocks
from fedblocks.core.private_state import Pack, StackedState, merge_private
from fedblocks.core.server import Cohort
from fedblocks.core.state import State
from fedblocks.core.trees import own_in_order, unbind
from fedblocks.core.uploads import Uploads, private_of, uploads_of
from fedblocks.engines.job import Job, Trained
from fedblocks.engines.whole_numbers import with_inputs

Bytes = dict[str, Tensor]  # block -> [clients]


@dataclass(frozen=True, eq=False)
class Report:
    """What happened in a round besides learning."""

    clients: list[int]
    bytes_down: dict[str, dict[int, int]]  # block -> client -> bytes
    bytes_up: dict[str, dict[int, int]]
    refusals: list[Refusal]
    # "local" -> client -> right labels, scored labels, sum of losses, measured metrics
    counts: dict[str, dict[int, tuple[float, ...]]]


@dataclass(frozen=True, eq=False)
class ClientResults:
    """What a group of clients ends a round with, before anybody looked at it."""

    job: Job
    trained: Trained
    uploads: Uploads
    bytes_up: Bytes
    private: Blocks  # [clients, ...]

    @staticmethod
    def of(job: Job, trained: Trained) -> ClientResults:
        uploads = uploads_of(
            job.method, trained.blocks, trained.weights, job.sent.reads, trained.wanted, job.cohort
        )
        bytes_up = {name: upload.bytes_up() for name, upload in uploads.items()}
        private = private_of(job.method, trained.blocks)
        return ClientResults(job, trained, uploads, bytes_up, private)

    @property
    def limits(self) -> Tensor:
        """[clients]: the largest weight that each may ask for, which is one for each of
        its labels.
        """
        return weight_limits(self.job)


def weight_limits(job: Job) -> Tensor:
    """[clients]: how many labels each has, at least 1."""
    return (job.cohort.sizes * job.data.y.shape[1:].numel()).clamp(min=1)


Results = Mapping[str, ClientResults]  # by group


def close_round(
    methods: Mapping[str, Method], state: State, results: Results, share: float = 1.0
) -> tuple[State, Report]:
    """End a round; `share` is the largest part of any slot that one client may decide."""
    admitted = {group: admit_group(own, state) for group, own in results.items()}
    refusals = [refusal for group in admitted.values() for refusal in group.refusals]
    cohorts = {group: own.cohort for group, own in admitted.items()}
    uploads = cap_groups({group: own.uploads for group, own in admitted.items()}, share)
    reduced = reduce_groups(state, uploads)
    after = conclude(methods, state, reduced, uploads, cohorts)
    kept = private_by_client(results, {refusal.client for refusal in refusals})
    after = replace(after, private=merge_private(state.private, kept))
    return after, report_of(results, refusals)


@dataclass(frozen=True, eq=False)
class Admitted:
    """What is used of a group's uploads, and why the rest is not."""

    uploads: Uploads
    cohort: Cohort
    refusals: list[Refusal]


def admit_group(results: ClientResults, state: State) -> Admitted:
    """Look at what a group of clients sends, and keep what can be used."""
    cohort, uploads = results.job.cohort, results.uploads
    good, refusals = admit(uploads, results.private, cohort.ids, results.limits, state.server)
    if not refusals:
        return Admitted(uploads, cohort, [])
    refusals = with_inputs(refusals, results.job.data)
    used = {name: upload.keep(good) for name, upload in uploads.items()}
    return Admitted(used, cohort.take(good), refusals)


def private_by_client(
    results: Results, refused: set[int], everybody: int | None = None
) -> Mapping[int, Blocks]:
    """What each client keeps after the round: one stack if that is everybody, which are as many
    as can train unless another number is named.
    """
    by_client: dict[int, Blocks] = {}
    for own in results.values():
        ids, private = own.job.ids, own.private
        whole = own.job.cohort.population if everybody is None else everybody
        if private and not refused and len(ids) == whole:
            return StackedState(Pack(tuple(ids), own_in_order(private)))
        for client, row in zip(ids, unbind(private, len(ids)), strict=True):
            if private and client not in refused:
                # so that nobody holds the memory of the whole cohort
                by_client[client] = own_in_order(row)
    return by_client


def report_of(results: Results, refusals: list[Refusal]) -> Report:
    """Write down who took part, what travelled, and who was refused."""
    clients = sorted(i for own in results.values() for i in own.job.ids)
    report = Report(clients, {}, {}, refusals, {})
    for own in results.values():
        ids = own.job.ids
        add_bytes(report.bytes_down, own.trained.bytes_down, ids)
        add_bytes(report.bytes_up, own.bytes_up, ids)
        for view, counts in own.trained.counts.items():
            report.counts.setdefault(view, {}).update(counts_by_client(counts, ids))
    return report


def fetch_bytes(lanes: Sequence[Results]) -> list[Results]:
    """The same with all counted bytes on the host: a GPU is asked once, not for each lane and
    block.
    """
    own = [result for results in lanes for result in results.values()]
    tables = [table for one in own for table in (one.trained.bytes_down, one.bytes_up)]
    sizes = [values for table in tables for values in table.values()]
    if not sizes:
        return [*lanes]
    pieces = iter(torch.split(torch.cat(sizes).cpu(), [len(values) for values in sizes]))
    on_host = iter([{name: next(pieces) for name in table} for table in tables])
    return [
        {group: _with_bytes(one, next(on_host), next(on_host)) for group, one in results.items()}
        for results in lanes
    ]


def _with_bytes(own: ClientResults, down: Bytes, up: Bytes) -> ClientResults:
    return replace(own, trained=replace(own.trained, bytes_down=down), bytes_up=up)


def add_bytes(
    traffic: dict[str, dict[int, int]], sizes: Mapping[str, Tensor], ids: list[int]
) -> None:
    """Add the bytes of some clients, block by block, to a table."""
    for block, values in sizes.items():
        traffic.setdefault(block, {}).update(zip(ids, values.tolist(), strict=True))


def counts_by_client(counts: Tensor, ids: list[int]) -> dict[int, tuple[float, ...]]:
    """[clients, 3 + measured] -> client -> right labels, scored labels, sum of losses, and the
    metrics that need outputs.
    """
    return {i: tuple(own) for i, own in zip(ids, counts.tolist(), strict=True)}
