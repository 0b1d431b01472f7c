"""Rounds of a real federation as the run folder keeps them; scores come a message later
than the round itself.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from fedblocks.core.task import Task
from fedblocks.flower.server.side import Closed, EvaluatedClients
from fedblocks.flower.wire.messages import Part
from fedblocks.runs.rounds import metrics_of, traffic_of
from fedblocks.runs.scored import leave_out_refused
from fedblocks.runs.storage.record import (
    ClientMetric,
    Note,
    RefusalRow,
    RoundRecord,
    Snapshot,
    Traffic,
)
from fedblocks.runs.storage.store import RunStore


def record_of(closed: Closed, seconds: float, started_at: str, task: Task) -> RoundRecord:
    """Return the record of a round that counts."""
    report = closed.report
    return RoundRecord(
        round=closed.progress.state.round,
        seconds=seconds,
        clients=len(report.clients),
        metrics=metrics_of("test", report.counts, task),
        traffic=[*traffic_of("down", report.bytes_down), *traffic_of("up", report.bytes_up)],
        refusals=[RefusalRow(r.client, r.reason, r.detail) for r in report.refusals],
        started_at=started_at,
    )


def rows_of(
    evaluated: EvaluatedClients, parts: Sequence[Part], task: Task
) -> tuple[list[ClientMetric], list[Snapshot]]:
    """Return what clients said of their models as rows of a record, on the parts asked for."""
    metrics: list[ClientMetric] = []
    for part in parts:
        views = {
            name.partition("/")[2]: counts
            for name, counts in evaluated.counts.items()
            if name.startswith(f"{part}/")
        }
        metrics += metrics_of(part, views, task)
    pictures = [
        Snapshot(name, client, list(numbers))
        for name, by_client in evaluated.pictures.items()
        for client, numbers in by_client.items()
    ]
    return metrics, pictures


def add_metrics(
    store: RunStore, round: int, more: Sequence[ClientMetric], pictures: Sequence[Snapshot] = ()
) -> None:
    """Add scores, and what there is to draw, to the last round on record; clients whose update of
    that round was refused have none in it.
    """
    stored = store.rows("SELECT * FROM rounds WHERE round = ?", round)
    if not stored or store.last_round() != round:
        return
    query = "SELECT {} FROM {} WHERE round = ? ORDER BY rowid"
    keyed = "SELECT {} FROM {} WHERE round = ?"
    scores = store.rows(
        keyed.format("part, view, client, correct, examples, loss, extra", "client_metrics"), round
    )
    known = [
        ClientMetric(**{**row, "loss": _number(row["loss"]), "extra": json.loads(row["extra"])})
        for row in scores
    ]
    drawn = store.rows(keyed.format("name, client, numbers", "snapshots"), round)
    kept = [Snapshot(**{**row, "numbers": json.loads(row["numbers"])}) for row in drawn]
    refusals = [
        RefusalRow(**r)
        for r in store.rows(query.format("client, reason, detail", "refusals"), round)
    ]
    metrics = {(m.part, m.view, m.client): m for m in (*known, *more)}
    record = RoundRecord(
        round=round,
        seconds=stored[0]["seconds"],
        clients=stored[0]["clients"],
        metrics=leave_out_refused(metrics.values(), refusals),
        traffic=[
            Traffic(**r)
            for r in store.rows(keyed.format("client, block, direction, bytes", "traffic"), round)
        ],
        refusals=refusals,
        snapshots=list({(s.name, s.client): s for s in (*kept, *pictures)}.values()),
        notes=[
            Note(row["text"], row["level"])
            for row in store.rows(query.format("text, level", "notes"), round)
        ],
        started_at=stored[0]["started_at"],
    )
    store.record_round(record)


def _number(value: float | None) -> float:
    return math.nan if value is None else value
