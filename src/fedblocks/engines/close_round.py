"""The end of a round, the server's side: admit what clients offer, aggregate it, conclude.

On a GPU all of it is queued in the hope that everybody is admitted, before anybody waits for a number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from fedblocks.core.admission import Examination, Refusal, admit, capped, examined, fitting, sound
from fedblocks.core.aggregate import Uploads, aggregate, conclude, private_of, reduced, uploads_of
from fedblocks.core.method import Method
from fedblocks.core.parts import Blocks, Params
from fedblocks.core.private_state import Pack, StackedState, merged
from fedblocks.core.server import Cohort
from fedblocks.core.state import State
from fedblocks.engines.job import Job, Trained


@dataclass(frozen=True, eq=False)
class Report:
    """What happened in a round besides learning."""

    clients: list[int]
    bytes_down: dict[str, dict[int, int]]  # block -> client -> bytes
    bytes_up: dict[str, dict[int, int]]
    refusals: list[Refusal]
    counts: dict[str, dict[int, tuple[float, float, float]]]  # "local" -> client -> correct, scored, loss


@dataclass(frozen=True, eq=False)
class ClientResults:
    """What a group of clients ends a round with, before anybody looked at it."""

    job: Job
    trained: Trained
    uploads: Uploads
    bytes_up: dict[str, Tensor]  # block -> [clients]
    private: Blocks

    @staticmethod
    def of(job: Job, trained: Trained, share: float = 1.0) -> ClientResults:
        uploads = uploads_of(job.method, trained.blocks, trained.weights, job.sent.reads, trained.wanted, job.cohort)
        uploads = capped(uploads, share)
        up = {name: upload.bytes_up() for name, upload in uploads.items()}
        return ClientResults(job, trained, uploads, up, private_of(job.method, trained.blocks))

    @property
    def limits(self) -> Tensor:
        """[clients]: the largest weight that each may ask for, which is one for each of its labels."""
        return (self.job.cohort.sizes * self.job.data.y.shape[1:].numel()).clamp(min=1)


@dataclass(frozen=True, eq=False)
class Speculation:
    """What a round leads to if everybody is admitted; queued behind the training, before anybody looks at it."""

    state: State | None  # nothing if a method could not conclude with numbers that nobody had looked at
    examinations: dict[str, Examination]  # of each group
    private: Mapping[int, Blocks]


def concluded(
    methods: Mapping[str, Method], state: State, offers: Mapping[str, ClientResults], hope: Speculation | None
) -> tuple[State, Report]:
    """The server's side of a round: admit what clients offer, aggregate it."""
    report = Report(sorted(i for offer in offers.values() for i in offer.job.ids), {}, {}, [], {})
    groups: dict[str, Uploads] = {}
    cohorts: dict[str, Cohort] = {}
    for group, offer in offers.items():
        good, refusals = _judged(offer, state, None if hope is None else hope.examinations[group])
        groups[group], cohorts[group] = _admitted(offer, good, refusals, report)
    if hope is not None and hope.state is not None and not report.refusals:
        return replace(hope.state, private=merged(state.private, hope.private)), report
    after = aggregate(methods, state, groups, cohorts)
    private = _private_by_client(offers, {refusal.client for refusal in report.refusals})
    return replace(after, private=merged(state.private, private)), report


def speculate(methods: Mapping[str, Method], state: State, offers: Mapping[str, ClientResults]) -> Speculation | None:
    """The hope for a round; nothing if uploads are not even of the right shape."""
    if not all(fitting(offer.uploads, state.server) for offer in offers.values()):
        return None
    after = reduced(state, {group: offer.uploads for group, offer in offers.items()})
    examinations = {group: _examined(offer, state, after.server) for group, offer in offers.items()}
    return speculation_of(methods, state, offers, after, examinations)


def speculation_of(
    methods: Mapping[str, Method],
    state: State,
    offers: Mapping[str, ClientResults],
    after: State,
    examinations: dict[str, Examination],
) -> Speculation:
    """The hope for a round whose blocks are reduced."""
    end: State | None = None
    with suppress(Exception):  # if everybody turns out to be sound it is met again, and raised
        uploads = {group: offer.uploads for group, offer in offers.items()}
        cohorts = {group: offer.job.cohort for group, offer in offers.items()}
        end = conclude(methods, state, after, uploads, cohorts)
    return Speculation(end, examinations, _private_by_client(offers, set()))


def _examined(offer: ClientResults, state: State, after: Mapping[str, Params]) -> Examination:
    count = [len(offer.job.ids)]
    sums = {u.name: sound([after[u.name]], count) for u in offer.uploads.values() if u.copies and not u.own}
    return examined(offer.uploads, offer.private, offer.job.cohort.ids, offer.limits, state.server, sums)


def _judged(offer: ClientResults, state: State, examination: Examination | None) -> tuple[Tensor, list[Refusal]]:
    """Who is admitted, [clients], and why the others are not; if anything is wrong, each is looked at alone."""
    if examination is not None:
        good, refusals = examination.judged()
        if not refusals:
            return good, []
    return admit(offer.uploads, offer.private, offer.job.cohort.ids, offer.limits, state.server)


def _admitted(offer: ClientResults, good: Tensor, refusals: list[Refusal], report: Report) -> tuple[Uploads, Cohort]:
    """The uploads that are used, with what travelled written to the report."""
    job, trained, uploads = offer.job, offer.trained, offer.uploads
    report.refusals.extend(refusals)
    _note(report.bytes_down, trained.bytes_down, job.ids)
    _note(report.bytes_up, offer.bytes_up, job.ids)
    for view, counts in trained.counts.items():
        report.counts.setdefault(view, {}).update(counts_by_client(counts, job.ids))
    kept = {name: upload.keep(good) for name, upload in uploads.items()} if refusals else uploads
    return kept, _kept_cohort(job.cohort, good) if refusals else job.cohort


def _kept_cohort(cohort: Cohort, good: Tensor) -> Cohort:
    tags = {name: values[good] for name, values in cohort.tags.items()}
    return replace(cohort, ids=cohort.ids[good], sizes=cohort.sizes[good], tags=tags)


def _private_by_client(offers: Mapping[str, ClientResults], refused: set[int]) -> Mapping[int, Blocks]:
    """What each client keeps after the round: one stack if that is everybody."""
    found: dict[int, Blocks] = {}
    for offer in offers.values():
        ids, private = offer.job.ids, offer.private
        if private and not refused and len(ids) == offer.job.cohort.population:
            return StackedState(Pack(tuple(ids), _each_tensor(private, torch.clone)))
        apart = _each_tensor(private, _apart)
        for m, i in enumerate(ids):
            if private and i not in refused:
                found[i] = _each_tensor(apart, itemgetter(m))
    return found


def _apart(stack: Tensor) -> list[Tensor]:
    """Copies of their own, so that nobody holds the memory of the whole cohort."""
    return [own.clone() for own in stack.unbind()]


def _each_tensor(blocks: Mapping[str, Mapping[str, Any]], function: Callable[[Any], Any]) -> dict[str, dict[str, Any]]:
    return {name: {k: function(v) for k, v in block.items()} for name, block in blocks.items()}


def _note(into: dict[str, dict[int, int]], traffic: Mapping[str, Tensor], ids: list[int]) -> None:
    for name, values in traffic.items():
        into.setdefault(name, {}).update(zip(ids, values.tolist(), strict=True))


def counts_by_client(counts: Tensor, ids: list[int]) -> dict[int, tuple[float, float, float]]:
    return {i: (c, n, loss) for i, (c, n, loss) in zip(ids, counts.tolist(), strict=True)}
