"""One round of a run: who takes part, what they learn, how well it works; as a state
and a record.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeVar

import torch

from fedblocks.core.errors import UserError
from fedblocks.core.random import generator
from fedblocks.core.state import State
from fedblocks.engines.close_round import Report
from fedblocks.engines.lanes.lanes import Lanes
from fedblocks.engines.round import Engine, Portraits
from fedblocks.engines.vectorised import Vectorised
from fedblocks.runs.build import Prepared
from fedblocks.runs.storage.environment import now
from fedblocks.runs.storage.record import (
    ClientMetric,
    Note,
    Part,
    RefusalRow,
    RoundRecord,
    Snapshot,
    Traffic,
)
from fedblocks.runs.storage.states import settle

SMALL = 256  # numbers that a private block may have to be kept for plots: branch weights, mixtures
Result = TypeVar("Result")
# of one lane; no portraits: it was not evaluated
Table = tuple[list[ClientMetric], Portraits | None]
# view -> client -> correct, labels, sum of losses
Counts = Mapping[str, Mapping[int, tuple[float, float, float]]]


def cohort_of(prepared: Prepared, round: int) -> list[int]:
    """The clients of a round, a function of seed and round alone."""
    if prepared.cohort == len(prepared.clients):
        return prepared.clients
    rng = generator(prepared.config.seed, round, "cohort")
    chosen = rng.choice(len(prepared.clients), prepared.cohort, replace=False)
    return sorted(prepared.clients[i] for i in chosen)


def play(
    lanes: Lanes, prepared: Sequence[Prepared], states: Sequence[State], engine: Engine
) -> tuple[Engine, list[tuple[State, RoundRecord]]]:
    """One round of every lane; if the GPU's memory does not suffice, with fewer clients
    at once from now on.
    """
    notes: list[Note] = []
    clients = sum(own.cohort for own in prepared)
    return within_memory(
        lambda engine: _play(lanes, prepared, states, engine, notes), engine, clients, notes
    )


def within_memory(
    work: Callable[[Engine], Result], engine: Engine, clients: int, notes: list[Note]
) -> tuple[Engine, Result]:
    """Do some work for so many clients with an engine, or with one that takes fewer at
    once; which one did it.
    """
    while True:
        try:
            return engine, work(engine)
        except torch.OutOfMemoryError as error:
            engine = _with_less_memory(engine, clients, error)
            text = f"out of memory: from now on {engine.chunk} clients at once"
            notes.append(Note(text, "warning"))


def _play(
    lanes: Lanes,
    prepared: Sequence[Prepared],
    states: Sequence[State],
    engine: Engine,
    notes: Sequence[Note],
) -> list[tuple[State, RoundRecord]]:
    began = time.perf_counter()
    started_at = now()
    round = states[0].round
    due = is_due(prepared[0], round)
    cohorts = [cohort_of(own, round) for own in prepared]
    coming = [cohort_of(own, round + 1) for own in prepared]
    ends = lanes.run_round(states, cohorts, engine, part_scored(prepared[0], due), coming)
    after = [settle(state) for state, _ in ends]
    tables: list[Table] = [([], None)] * len(prepared)
    if due:
        tables = _evaluate(lanes, prepared, after, engine)
    seconds = (time.perf_counter() - began) / len(prepared)
    records = [
        record(state, end[1], *own, [*notes, *_conclusions(lane, round, own[1])])
        for state, end, own, lane in zip(after, ends, tables, prepared, strict=True)
    ]
    return [
        (s, replace(r, seconds=seconds, started_at=started_at))
        for s, r in zip(after, records, strict=True)
    ]


def _evaluate(
    lanes: Lanes, prepared: Sequence[Prepared], states: Sequence[State], engine: Engine
) -> list[Table]:
    """Metrics and portraits of every lane."""
    parts = prepared[0].config.evaluation.parts
    clients = [own.clients for own in prepared]
    seen = lanes.evaluate_parts(states, clients, engine, parts) if parts else []
    unseen = [own.unseen for own in prepared]
    joining = any(unseen)
    new = lanes.evaluate_parts(states, unseen, engine, ("test",), joining=True) if joining else []
    tables: list[Table] = []
    for lane in range(len(prepared)):
        metrics: list[ClientMetric] = []
        for part in parts:
            metrics += metrics_of(part, seen[lane].scores.get(part, {}))
        metrics += metrics_of("unseen", new[lane].scores.get("test", {})) if new else []
        tables.append((metrics, seen[lane].portraits if seen else {}))
    return tables


def is_due(prepared: Prepared, round: int) -> bool:
    """Whether the models are tried after this round."""
    done = round + 1
    config = prepared.config
    return done % config.evaluation.every == 0 or done == config.rounds


def part_scored(prepared: Prepared, due: bool) -> str | None:
    """The part that models are tried on right after local training, if they are."""
    return "test" if due and prepared.config.evaluation.local else None


def record(
    after: State,
    report: Report,
    metrics: list[ClientMetric],
    portraits: Portraits | None,
    notes: Sequence[Note],
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


def metrics_of(part: Part, counts: Counts) -> list[ClientMetric]:
    return [
        ClientMetric(part, view, client, correct, labels, loss / labels if labels else math.nan)
        for view, by_client in counts.items()
        for client, (correct, labels, loss) in by_client.items()
    ]


def traffic_of(
    direction: Literal["down", "up"], sizes: Mapping[str, Mapping[int, int]]
) -> list[Traffic]:
    return [
        Traffic(client, block, direction, size)
        for block, row in sizes.items()
        for client, size in row.items()
    ]


def _snapshots(state: State, portraits: Portraits) -> list[Snapshot]:
    """The small private blocks of every client, such as branch weights, and the
    portraits of their models.
    """
    kept: list[Snapshot] = []
    for client, blocks in state.private.items():
        for name, block in blocks.items():
            if name not in portraits and sum(value.numel() for value in block.values()) <= SMALL:
                numbers = [
                    number for value in block.values() for number in value.flatten().tolist()
                ]
                kept.append(Snapshot(name, client, numbers))
    drawn = [
        Snapshot(name, client, numbers)
        for name, by in portraits.items()
        for client, numbers in by.items()
    ]
    return kept + [snapshot for snapshot in drawn if len(snapshot.numbers) <= SMALL]


def _conclusions(prepared: Prepared, round: int, portraits: Portraits | None) -> list[Note]:
    """After the last round, what the methods say of the models that came out."""
    if portraits is None or round + 1 < prepared.config.rounds:
        return []
    sentences: list[str] = []
    for group, clients in prepared.experiment.members(prepared.clients).items():
        own = {
            name: {client: by[client] for client in clients if client in by}
            for name, by in portraits.items()
        }
        sentences += prepared.experiment.methods[group].conclusions(own)
    return [Note(text, "warning") for text in sentences]


def _remarks(report: Report) -> list[Note]:
    if report.clients and len({r.client for r in report.refusals}) == len(report.clients):
        first = report.refusals[0]
        text = (
            f"every update was refused ({first.reason}: {first.detail}); try a lower learning rate"
        )
        return [Note(text, "warning")]
    return []


def _with_less_memory(engine: Engine, clients: int, error: Exception) -> Vectorised:
    half = min(engine.chunk, clients) // 2 if isinstance(engine, Vectorised) else 0
    if half < 1:
        fix = (
            "use a smaller net, fewer branches or components, a smaller batch, or a device "
            "with more memory"
        )
        raise UserError("one client alone does not fit the memory of the device", fix) from error
    torch.cuda.empty_cache()
    return Vectorised(chunk=half)
