"""One round of a run: who takes part, what they learn, how well it works; as a state
and a record.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeVar

import torch

from fedblocks.core.admission import Refusal
from fedblocks.core.errors import UserError, count_of
from fedblocks.core.forward_errors import note_of
from fedblocks.core.hooks import ask_sentences
from fedblocks.core.metrics import mean_loss
from fedblocks.core.state import State
from fedblocks.core.task import Task
from fedblocks.engines.close_round import Report
from fedblocks.engines.failures import UNSCORED, unscored
from fedblocks.engines.lanes.lanes import Lanes
from fedblocks.engines.less_memory import with_less_memory
from fedblocks.engines.round import Engine, Portraits
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.kernels.device_errors import shortages_alike
from fedblocks.runs.broken_servers import notes_of_broken_servers
from fedblocks.runs.build import Prepared
from fedblocks.runs.faults import ABSENT, faults_of, note_absent
from fedblocks.runs.idle_blocks import notes_of_idle_blocks
from fedblocks.runs.refusals import notes_of_refusals
from fedblocks.runs.storage.environment import now
from fedblocks.runs.storage.main_metric import extra_of
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
Table = tuple[list[ClientMetric], Portraits | None, list[Refusal]]
# view -> client -> right labels, scored labels, sum of losses, measured metrics
Counts = Mapping[str, Mapping[int, tuple[float, ...]]]


def cohort_of(prepared: Prepared, round: int) -> list[int]:
    """The clients of a round, a function of seed and round alone."""
    return prepared.sampling.cohort(round)


def play(
    lanes: Lanes, prepared: Sequence[Prepared], states: Sequence[State], engine: Engine
) -> tuple[Engine, list[tuple[State, RoundRecord]]]:
    """One round of every lane; if memory does not suffice, or a net cannot be mapped over clients,
    with fewer clients at once from now on.
    """
    notes: list[Note] = []
    clients = sum(own.cohort for own in prepared)
    before = len(lanes.apart)
    engine, ends = attempt(
        lambda engine: _play(lanes, prepared, states, engine, notes), engine, clients, notes
    )
    if len(lanes.apart) > before:
        text = (
            f"{lanes.apart[-1]} decides by numbers in which these lanes differ: one after another"
        )
        ends = [(state, replace(own, notes=[*own.notes, Note(text)])) for state, own in ends]
    return engine, ends


def attempt(
    work: Callable[[Engine], Result], engine: Engine, clients: int, notes: list[Note]
) -> tuple[Engine, Result]:
    """Do some work for so many clients with an engine, or else with one that takes fewer at once,
    or one after the other; which one did it.
    """
    while True:
        try:
            with shortages_alike():
                return engine, work(engine)
        except torch.OutOfMemoryError as error:
            engine = with_less_memory(engine, clients, error)
            text = f"out of memory: from now on {count_of(engine.chunk, 'client')} at once"
        except UserError:
            raise
        except Exception as error:
            if not isinstance(engine, Vectorised):
                raise
            engine = Sequential()
            note = note_of(error)
            why = (str(error).strip() or type(error).__name__).splitlines()[0]
            why = why if note is None else note.message
            text = f"from now on one client after another: a stack of clients failed ({why})"
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
    due = [is_due(own, state.round) for own, state in zip(prepared, states, strict=True)]
    ends = _train(lanes, prepared, states, engine)
    after = [settle(state) for state, _ in ends]
    tables: list[Table] = [([], None, [])] * len(prepared)
    if any(due):
        tables = _evaluate(lanes, prepared, after, engine, due)
    seconds = (time.perf_counter() - began) / len(prepared)
    records = []
    for lane, start, state, (_, report), own in zip(
        prepared, states, after, ends, tables, strict=True
    ):
        metrics, portraits, failures = own
        whole = replace(report, refusals=[*report.refusals, *unscored(failures)])
        said = [*notes, *conclusions_of(lane, state.round - 1, portraits)]
        said += notes_of_idle_blocks(lane.experiment, state, report)
        said += notes_of_broken_servers(lane.experiment.methods, start, state)
        early = metrics_of("test", report.counts, lane.experiment.data.task)
        records.append(record(state, whole, [*early, *metrics], portraits, said))
    return [
        (s, replace(r, seconds=seconds, started_at=started_at))
        for s, r in zip(after, records, strict=True)
    ]


def _train(
    lanes: Lanes, prepared: Sequence[Prepared], states: Sequence[State], engine: Engine
) -> list[tuple[State, Report]]:
    """The states after a round of every lane, and what happened in it, faults on
    purpose included.
    """
    rounds = [state.round for state in states]
    cohorts = [cohort_of(own, round) for own, round in zip(prepared, rounds, strict=True)]
    coming = [cohort_of(own, round + 1) for own, round in zip(prepared, rounds, strict=True)]
    faults = [faults_of(*own) for own in zip(prepared, rounds, cohorts, strict=True)]
    present = [
        [i for i in ids if own.get(i) not in ABSENT]
        for ids, own in zip(cohorts, faults, strict=True)
    ]
    corrupt = [{i for i, fault in own.items() if fault == "corrupt"} for own in faults]
    parts = [part_scored(own, is_due(own, at)) for own, at in zip(prepared, rounds, strict=True)]
    part = next((part for part in parts if part), None)
    ends = lanes.run_round(states, present, engine, part, coming, corrupt=corrupt)
    reports = [
        report if own else replace(report, counts={})
        for (_, report), own in zip(ends, parts, strict=True)
    ]
    return [
        (after, note_absent(own, state, report, by_client) if by_client else report)
        for (after, _), report, own, state, by_client in zip(
            ends, reports, prepared, states, faults, strict=True
        )
    ]


def _evaluate(
    lanes: Lanes,
    prepared: Sequence[Prepared],
    states: Sequence[State],
    engine: Engine,
    due: Sequence[bool],
) -> list[Table]:
    """Metrics and portraits of every lane that is due."""
    parts = prepared[0].config.evaluation.parts
    clients = [own.clients if now else [] for own, now in zip(prepared, due, strict=True)]
    seen = lanes.evaluate_parts(states, clients, engine, parts) if parts else []
    unseen = [own.unseen if now else [] for own, now in zip(prepared, due, strict=True)]
    joining = any(unseen)
    new = lanes.evaluate_parts(states, unseen, engine, ("test",), joining=True) if joining else []
    tables: list[Table] = []
    for lane, own in enumerate(prepared):
        task = own.experiment.data.task
        metrics: list[ClientMetric] = []
        for part in parts:
            metrics += metrics_of(part, seen[lane].scores.get(part, {}), task)
        metrics += metrics_of("unseen", new[lane].scores.get("test", {}), task) if new else []
        failures = [r for some in (seen, new) if some for r in some[lane].failures]
        portraits = seen[lane].portraits if seen else {}
        tables.append((metrics, portraits if due[lane] else None, failures))
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
    """What is stored of a round; without portraits it was not evaluated. Clients that sent
    nothing were asked all the same.
    """
    absent = [refusal.client for refusal in report.refusals if refusal.reason != UNSCORED]
    return RoundRecord(
        round=after.round,
        seconds=0.0,
        clients=len({*report.clients, *absent}),
        metrics=metrics,
        traffic=[*traffic_of("down", report.bytes_down), *traffic_of("up", report.bytes_up)],
        refusals=[RefusalRow(r.client, r.reason, r.detail) for r in report.refusals],
        snapshots=_snapshots(after, portraits) if portraits is not None else [],
        notes=[*notes, *notes_of_refusals(report, after)],
    )


def metrics_of(part: Part, counts: Counts, task: Task) -> list[ClientMetric]:
    return [
        _metric(part, view, client, own, task)
        for view, by_client in counts.items()
        for client, own in by_client.items()
    ]


def _metric(
    part: Part, view: str, client: int, counts: tuple[float, ...], task: Task
) -> ClientMetric:
    correct, labels, loss = counts[:3]
    mean = mean_loss(loss, labels)
    return ClientMetric(part, view, client, correct, labels, mean, extra_of(task, counts))


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


def conclusions_of(prepared: Prepared, round: int, portraits: Portraits | None) -> list[Note]:
    """After the last round, what the methods say of the models that came out."""
    if portraits is None or round + 1 < prepared.config.rounds:
        return []
    sentences: list[str] = []
    for group, clients in prepared.experiment.members(prepared.clients).items():
        own = {
            name: {client: by[client] for client in clients if client in by}
            for name, by in portraits.items()
        }
        sentences += ask_sentences(prepared.experiment.methods[group], "conclusions", own)
    return [Note(text, "warning") for text in sentences]
