"""One round of a run: who takes part, what they learn, how well it works; as a state and a record."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import torch

from fedblocks.core.errors import UserError
from fedblocks.core.random import generator
from fedblocks.core.state import State
from fedblocks.engines.close_round import Report
from fedblocks.engines.round import evaluate, evaluation, run_round
from fedblocks.engines.vectorised import Vectorised
from fedblocks.runs.build import Prepared
from fedblocks.runs.storage.environment import now
from fedblocks.runs.storage.record import ClientMetric, Note, Part, RefusalRow, RoundRecord, Snapshot, Traffic
from fedblocks.runs.storage.states import settled

SMALL = 256  # numbers that a private block may have to be kept for plots: branch weights, mixtures
Portraits = dict[str, dict[int, list[float]]]  # name -> client -> numbers
Counts = Mapping[str, Mapping[int, tuple[float, float, float]]]  # view -> client -> correct, labels, sum of losses


def cohort_of(prepared: Prepared, round: int) -> list[int]:
    """The clients of a round, a function of seed and round alone."""
    if prepared.cohort == len(prepared.clients):
        return prepared.clients
    rng = generator(prepared.config.seed, round, "cohort")
    chosen = rng.choice(len(prepared.clients), prepared.cohort, replace=False)
    return sorted(prepared.clients[i] for i in chosen)


def play(prepared: Prepared, state: State) -> tuple[Prepared, State, RoundRecord]:
    """One round; if the GPU's memory does not suffice, with fewer clients at once, then and from now on."""
    notes: list[Note] = []
    while True:
        try:
            return prepared, *_played(prepared, state, notes)
        except torch.OutOfMemoryError as error:
            prepared = _with_less_memory(prepared, error)
            notes.append(Note(f"out of memory: from now on {_chunk(prepared)} clients at once", "warning"))


def _played(prepared: Prepared, state: State, notes: list[Note]) -> tuple[State, RoundRecord]:
    began, started_at = time.perf_counter(), now()
    clients, due = cohort_of(prepared, state.round), is_due(prepared, state.round)
    coming = cohort_of(prepared, state.round + 1)
    after, report = run_round(prepared.setting, state, clients, prepared.engine, scored(prepared, due), coming)
    after = settled(after)
    metrics, portraits = _evaluated(prepared, after) if due else ([], {})
    found = record(after, report, metrics, portraits if due else None, notes)
    return after, replace(found, seconds=time.perf_counter() - began, started_at=started_at)


def is_due(prepared: Prepared, round: int) -> bool:
    """Whether the models are tried after this round."""
    return (round + 1) % prepared.config.evaluation.every == 0 or round + 1 == prepared.config.rounds


def scored(prepared: Prepared, due: bool) -> str | None:
    """The part that models are tried on right after local training, if they are."""
    return "test" if due and prepared.config.evaluation.local else None


def record(
    after: State, report: Report, metrics: list[ClientMetric], portraits: Portraits | None, notes: Sequence[Note]
) -> RoundRecord:
    """What is stored of a round; without portraits it was not evaluated."""
    return RoundRecord(
        round=after.round,
        seconds=0.0,
        clients=len(report.clients),
        metrics=[*metrics_of("test", report.counts), *metrics],
        traffic=[*traffic_of("down", report.bytes_down), *traffic_of("up", report.bytes_up)],
        refusals=[RefusalRow(r.client, r.reason, r.detail) for r in report.refusals],
        snapshots=_snapshots(after, portraits) if portraits is not None else [],
        notes=[*notes, *_remarks(report)],
    )


def _evaluated(prepared: Prepared, state: State) -> tuple[list[ClientMetric], Portraits]:
    setting, engine = prepared.setting, prepared.engine
    found: list[ClientMetric] = []
    portraits: Portraits = {}
    for part in prepared.config.evaluation.parts:
        counts, portraits = evaluation(setting, state, prepared.clients, engine, part)  # the same for every part
        found += metrics_of(part, counts)
    if prepared.unseen:
        found += metrics_of("unseen", evaluate(setting, state, prepared.unseen, engine, "test", joining=True))
    return found, portraits


def metrics_of(part: Part, counts: Counts) -> list[ClientMetric]:
    return [
        ClientMetric(part, view, client, correct, labels, loss / labels if labels else math.nan)
        for view, by_client in counts.items()
        for client, (correct, labels, loss) in by_client.items()
    ]


def traffic_of(direction: Literal["down", "up"], found: Mapping[str, Mapping[int, int]]) -> list[Traffic]:
    return [Traffic(client, block, direction, size) for block, row in found.items() for client, size in row.items()]


def _snapshots(state: State, portraits: Portraits) -> list[Snapshot]:
    """The small private blocks of every client, such as branch weights, and the portraits of their models."""
    found: list[Snapshot] = []
    for client, blocks in state.private.items():
        for name, block in blocks.items():
            if name not in portraits and sum(value.numel() for value in block.values()) <= SMALL:
                numbers = [number for value in block.values() for number in value.flatten().tolist()]
                found.append(Snapshot(name, client, numbers))
    drawn = [Snapshot(name, client, numbers) for name, by in portraits.items() for client, numbers in by.items()]
    return found + [snapshot for snapshot in drawn if len(snapshot.numbers) <= SMALL]


def _remarks(report: Report) -> list[Note]:
    if report.clients and len({r.client for r in report.refusals}) == len(report.clients):
        first = report.refusals[0]
        text = f"every update was refused ({first.reason}: {first.detail}); try a lower learning rate"
        return [Note(text, "warning")]
    return []


def _chunk(prepared: Prepared) -> int:
    return prepared.engine.chunk if isinstance(prepared.engine, Vectorised) else 1


def _with_less_memory(prepared: Prepared, error: Exception) -> Prepared:
    half = min(_chunk(prepared), prepared.cohort) // 2
    if half < 1:
        fix = "use a smaller net, fewer branches or components, a smaller batch, or a device with more memory"
        raise UserError("one client alone does not fit the memory of the device", fix) from error
    torch.cuda.empty_cache()
    return replace(prepared, engine=Vectorised(chunk=half))
