"""One round of a run: who takes part, what they learn, how well it works; as a state and a record."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import torch

from fedblocks.core.errors import UserError
from fedblocks.core.random import generator
from fedblocks.core.state import State
from fedblocks.engines.federate import Report, evaluate, run_round
from fedblocks.engines.vectorised import Vectorised
from fedblocks.runs.build import Prepared
from fedblocks.runs.environment import now
from fedblocks.runs.states import settled
from fedblocks.runs.store import ClientMetric, Note, Part, Refusal, RoundRecord, Snapshot, Traffic

SMALL = 256  # numbers that a private block may have to be kept for plots: branch weights, mixtures
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
    config, clients = prepared.config, cohort_of(prepared, state.round)
    due = (state.round + 1) % config.evaluation.every == 0 or state.round + 1 == config.rounds
    score = "test" if due and config.evaluation.local else None
    after, report = run_round(prepared.setting, state, clients, prepared.engine, score)
    after = settled(after, clients)
    metrics = [*_metrics("test", report.counts), *_evaluated(prepared, after)] if due else []
    record = RoundRecord(
        round=after.round,
        seconds=time.perf_counter() - began,
        clients=len(clients),
        metrics=metrics,
        traffic=[*_traffic("down", report.bytes_down), *_traffic("up", report.bytes_up)],
        refusals=[Refusal(r.client, r.reason, r.detail) for r in report.refusals],
        snapshots=_snapshots(after) if due else [],
        notes=[*notes, *_remarks(report)],
        started_at=started_at,
    )
    return after, record


def _evaluated(prepared: Prepared, state: State) -> list[ClientMetric]:
    setting, engine = prepared.setting, prepared.engine
    found: list[ClientMetric] = []
    for part in prepared.config.evaluation.parts:
        found += _metrics(part, evaluate(setting, state, prepared.clients, engine, part))
    if prepared.unseen:
        found += _metrics("unseen", evaluate(setting, state, prepared.unseen, engine, "test", joining=True))
    return found


def _metrics(part: Part, counts: Counts) -> list[ClientMetric]:
    return [
        ClientMetric(part, view, client, correct, labels, loss / labels if labels else math.nan)
        for view, by_client in counts.items()
        for client, (correct, labels, loss) in by_client.items()
    ]


def _traffic(direction: Literal["down", "up"], found: Mapping[str, Mapping[int, int]]) -> list[Traffic]:
    return [Traffic(client, block, direction, size) for block, row in found.items() for client, size in row.items()]


def _snapshots(state: State) -> list[Snapshot]:
    """The small private blocks of every client, such as branch weights and mixtures."""
    found: list[Snapshot] = []
    for client, blocks in state.private.items():
        for name, block in blocks.items():
            if sum(value.numel() for value in block.values()) <= SMALL:
                numbers = [number for value in block.values() for number in value.flatten().tolist()]
                found.append(Snapshot(name, client, numbers))
    return found


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
