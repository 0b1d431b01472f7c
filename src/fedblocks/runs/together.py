"""Runs that differ in seed or learning rate only, done as lanes of one on a GPU; each in a folder of its own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch

from fedblocks.core.state import State
from fedblocks.engines.lanes import Lanes, why_not
from fedblocks.engines.vectorised import Vectorised
from fedblocks.runs.build import Prepared, prepare
from fedblocks.runs.config import Config
from fedblocks.runs.environment import environment, now
from fedblocks.runs.folder import RunFolder
from fedblocks.runs.progress import OnNote, OnRound, RoundDone
from fedblocks.runs.result import RunResult, load_run
from fedblocks.runs.rounds import cohort_of, is_due, metrics_of, record, scored
from fedblocks.runs.run import begin, ending, hardware, save
from fedblocks.runs.states import settled
from fedblocks.runs.stopping import Stop
from fedblocks.runs.store import ClientMetric, Note, RoundRecord

MOST = 512  # clients in one stack


def worth_it(prepared: Sequence[Prepared]) -> bool:
    """Whether runs can and should be lanes: several, on a GPU, on the vectorised engine."""
    on_gpu = all(p.setting.data.x.device.type == "cuda" and isinstance(p.engine, Vectorised) for p in prepared)
    return len(prepared) > 1 and on_gpu and fits(prepared)


def fits(prepared: Sequence[Prepared]) -> bool:
    """Whether runs can be lanes of one."""
    first = prepared[0].config
    same = all(_pace(p.config) == _pace(first) for p in prepared)
    return same and why_not([p.setting for p in prepared]) is None


def _pace(config: Config) -> tuple[object, ...]:
    return config.rounds, config.evaluation, config.checkpoint.every, config.threads, config.precision


def run_together(
    configs: Sequence[Config], folders: Sequence[Path], on_round: OnRound | None = None, on_note: OnNote | None = None
) -> list[RunResult]:
    """New runs as lanes of one; `on_round` hears of the first of them."""
    prepared = [prepare(config) for config in configs]
    tell = on_note or (lambda note: None)
    with ExitStack() as stack:
        stack.enter_context(hardware(configs[0]))
        opened = [
            stack.enter_context(RunFolder.create(path, config.resolved(), environment()))
            for path, config in zip(folders, configs, strict=True)
        ]
        note = Note(f"one of {len(configs)} lanes: the seconds of a round are those of all, divided by {len(configs)}")
        for folder, one in zip(opened, prepared, strict=True):
            begin(folder, one, [*one.notes, note], tell)
            stack.enter_context(ending(folder))
        with Stop(tell) as stop:
            _rounds(opened, prepared, stop, on_round, tell)
    return [load_run(path) for path in folders]


def _rounds(
    folders: Sequence[RunFolder], prepared: Sequence[Prepared], stop: Stop, on_round: OnRound | None, tell: OnNote
) -> None:
    lanes, config = Lanes([p.setting for p in prepared]), prepared[0].config
    states = [p.setting.start() for p in prepared]
    changed: list[set[int]] = [set() for _ in prepared]
    engine = Vectorised(chunk=MOST)
    while states[0].round < config.rounds:
        cohorts = [cohort_of(p, states[0].round) for p in prepared]
        engine, states, records = _played(lanes, prepared, states, cohorts, engine)
        stopping, last = stop.asked, states[0].round == config.rounds
        for lane, (folder, state) in enumerate(zip(folders, states, strict=True)):
            changed[lane].update(cohorts[lane])
            folder.store.record_round(records[lane])
            if last or stopping or state.round % (config.checkpoint.every or 1) == 0:
                save(folder, prepared[lane].config, state, changed[lane])
                changed[lane] = set()
        for note in records[0].notes:
            tell(note)
        if on_round is not None:
            on_round(RoundDone.of(records[0], config.rounds))
        if stopping and not last:
            raise KeyboardInterrupt


def _played(
    lanes: Lanes, prepared: Sequence[Prepared], states: list[State], cohorts: list[list[int]], engine: Vectorised
) -> tuple[Vectorised, list[State], list[RoundRecord]]:
    """One round of all lanes; if the GPU's memory does not suffice, with fewer clients at once from now on."""
    while True:
        try:
            return engine, *_round(lanes, prepared, states, cohorts, engine)
        except torch.OutOfMemoryError:
            if engine.chunk == 1:
                raise
            torch.cuda.empty_cache()
            engine = Vectorised(chunk=engine.chunk // 2)


def _round(
    lanes: Lanes, prepared: Sequence[Prepared], states: list[State], cohorts: list[list[int]], engine: Vectorised
) -> tuple[list[State], list[RoundRecord]]:
    began, started_at = time.perf_counter(), now()
    due = is_due(prepared[0], states[0].round)
    coming = [cohort_of(own, state.round + 1) for own, state in zip(prepared, states, strict=True)]
    ends = lanes.run_round(states, cohorts, engine, scored(prepared[0], due), coming)
    after = [settled(state) for state, _ in ends]
    metrics: list[list[ClientMetric]] = [[] for _ in prepared]
    portraits = _evaluate(lanes, prepared, after, engine, metrics) if due else [None] * len(prepared)
    seconds = (time.perf_counter() - began) / len(prepared)
    records = [record(s, ends[k][1], metrics[k], portraits[k], []) for k, s in enumerate(after)]
    return after, [replace(one, seconds=seconds, started_at=started_at) for one in records]


def _evaluate(
    lanes: Lanes, prepared: Sequence[Prepared], states: list[State], engine: Vectorised, into: list[list[ClientMetric]]
) -> list[dict[str, dict[int, list[float]]] | None]:
    """Metrics of every lane, written to `into`; the portraits of its models."""
    portraits: list[dict[str, dict[int, list[float]]] | None] = [{} for _ in prepared]
    for part in prepared[0].config.evaluation.parts:
        found = lanes.evaluation(states, [p.clients for p in prepared], engine, part, joining=False)
        for lane, (scores, drawn) in enumerate(found):
            into[lane] += metrics_of(part, scores)
            portraits[lane] = drawn
    if prepared[0].unseen:
        found = lanes.evaluation(states, [p.unseen for p in prepared], engine, "test", joining=True)
        for lane, (scores, _) in enumerate(found):
            into[lane] += metrics_of("unseen", scores)
    return portraits
