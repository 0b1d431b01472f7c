"""What is kept of a round, and the rows that it becomes in the tables of its run."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from fedblocks.runs.storage.environment import now
from fedblocks.runs.storage.main_metric import score_of

LANES = "lanes"  # under which a run's folder keeps how many were done together
Part: TypeAlias = Literal["train", "validation", "test", "unseen"]


class ClientMetric(NamedTuple):
    """How well one client did in one evaluation."""

    part: Part  # of the client's data
    view: str  # which model: personal, shared, local, ...
    client: int
    correct: float  # labels that were right
    examples: float  # labels that were scored
    loss: float = math.nan  # mean over the examples
    extra: Mapping[str, Any] | None = None  # metrics by name, where accuracy is not the only one


class Traffic(NamedTuple):
    """What one client sent or received of one block."""

    client: int
    block: str
    direction: Literal["down", "up"]
    bytes: int


class RefusalRow(NamedTuple):
    """An update that was not used, and why."""

    client: int
    reason: str
    detail: str = ""


class Snapshot(NamedTuple):
    """A few numbers of one client, such as its mixture weights, to be plotted later."""

    name: str
    client: int
    numbers: Sequence[float]


class Note(NamedTuple):
    """Something a reader of the run should know: the engine chosen, a fallback taken."""

    text: str
    level: Literal["info", "warning"] = "info"


@dataclass(frozen=True)
class RoundRecord:
    """Everything that is kept of one round."""

    round: int
    seconds: float
    clients: int  # that took part
    metrics: Sequence[ClientMetric] = ()
    traffic: Sequence[Traffic] = ()
    refusals: Sequence[RefusalRow] = ()
    snapshots: Sequence[Snapshot] = ()
    notes: Sequence[Note] = ()
    started_at: str = field(default_factory=now)  # UTC, ISO 8601

    def sent(self, direction: Literal["down", "up"]) -> int:
        """Bytes of all clients and blocks in one direction."""
        return sum(int(row.bytes) for row in self.traffic if row.direction == direction)


def tables_of(record: RoundRecord) -> dict[str, Iterable[Sequence[Any]]]:
    """The rows of each table, less the round; numpy's numbers, which SQLite would keep
    as bytes, become Python's.
    """
    sent = (record.sent("down"), record.sent("up"))
    return {
        "rounds": [(float(record.seconds), int(record.clients), *sent, record.started_at)],
        "client_metrics": (
            (*m[:2], int(m[2]), *map(float, m[3:6]), json.dumps(m.extra or {}))
            for m in record.metrics
        ),
        "means": _means(record.metrics),
        "traffic": ((int(t.client), t.block, t.direction, int(t.bytes)) for t in record.traffic),
        "refusals": ((int(r.client), r.reason, r.detail) for r in record.refusals),
        "snapshots": (
            (s.name, int(s.client), json.dumps([float(n) for n in s.numbers]))
            for s in record.snapshots
        ),
        "notes": ((now(), note.level, note.text) for note in record.notes),
    }


def read_losses(rows: Sequence[dict[str, Any]]) -> None:
    """Put the losses of rows of `client_metrics` as they are meant: SQLite keeps NaN as NULL.

    Without labels a loss is undefined, and in a round where nobody has one it was not recorded.
    Records of before 2026-11 have NULL also where the loss of some labels is no number: it is
    endless, as it is stored today.
    """
    known = {row["round"] for row in rows if row["loss"] is not None}
    for row in rows:
        if row["loss"] is None:
            is_endless = row["examples"] > 0 and row["round"] in known
            row["loss"] = math.inf if is_endless else math.nan


def _means(metrics: Iterable[ClientMetric]) -> list[tuple[str, str, int, float]]:
    groups: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in metrics:
        if (score := score_of(row._asdict())) is not None:
            groups[row.part, row.view].append(float(score))
    return [
        (part, view, len(values), math.fsum(values) / len(values))
        for (part, view), values in groups.items()
    ]
