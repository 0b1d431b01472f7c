"""Runs that differ in seed or learning rate only, done as lanes of one on a GPU; each in a folder of its own.

Rounds are recorded when a checkpoint is due, or after a while: a kill costs the rounds since then, as it would cost
a run alone the rounds since its last checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from fedblocks.config.model import Config
from fedblocks.core.errors import RunFolderError
from fedblocks.core.state import State
from fedblocks.engines.close_round import Report
from fedblocks.engines.lanes.lanes import Lanes, why_not
from fedblocks.engines.vectorised import Vectorised
from fedblocks.runs.build import Prepared, prepare
from fedblocks.runs.progress import OnNote, OnRound, RoundDone
from fedblocks.runs.result import RunResult, load_run
from fedblocks.runs.rounds import cohort_of, is_due, metrics_of, record, scored
from fedblocks.runs.run import OFTEN, begin, check_same_data, ending, hardware, last_state, save
from fedblocks.runs.stopping import Stop
from fedblocks.runs.storage.constants import restore_constants
from fedblocks.runs.storage.environment import environment, now
from fedblocks.runs.storage.folder import CONFIG, RunFolder
from fedblocks.runs.storage.record import ClientMetric, Note, RoundRecord
from fedblocks.runs.storage.states import settled

MOST = 512  # clients in one stack
LANES = "lanes"  # under which a run's folder keeps how many they were


def worth_it(prepared: Sequence[Prepared]) -> bool:
    """Whether runs can and should be lanes: several, on a GPU, on the vectorised engine."""
    on_gpu = all(p.setting.data.x.device.type == "cuda" and isinstance(p.engine, Vectorised) for p in prepared)
    return len(prepared) > 1 and on_gpu and fits(prepared)


def is_mapped(prepared: Prepared) -> bool:
    """Whether a run would not rather be done client by client, as one with a large net on a GPU."""
    return prepared.setting.data.x.device.type != "cuda" or isinstance(prepared.engine, Vectorised)


def fits(prepared: Sequence[Prepared]) -> bool:
    """Whether runs can be lanes of one."""
    first = prepared[0].config
    same = all(_pace(p.config) == _pace(first) for p in prepared)
    return same and why_not([p.setting for p in prepared]) is None


def _pace(config: Config) -> tuple[object, ...]:
    return config.rounds, config.evaluation, config.checkpoint.every, config.threads, config.precision


@dataclass(eq=False)
class Lane:
    """One of the runs, where it stands, and what of it is not on the disk yet."""

    folder: RunFolder
    prepared: Prepared
    state: State
    records: list[RoundRecord] = field(default_factory=list)
    changed: set[int] = field(default_factory=set)  # clients that trained since the last checkpoint

    def store(self) -> None:
        """Records first: a kill in between makes `resume` record those rounds once more."""
        if self.records:
            self.folder.store.record_round(*self.records)
            save(self.folder, self.prepared.config, self.state, self.changed)
        self.records, self.changed = [], set()


def has_room(prepared: Sequence[Prepared]) -> bool:
    """Whether the cohorts of these runs are one stack."""
    return sum(p.cohort for p in prepared) <= MOST


def run_together(
    configs: Sequence[Config], folders: Sequence[Path], on_round: OnRound | None = None, on_note: OnNote | None = None
) -> list[RunResult]:
    """Runs as lanes of one, new ones or such as were stopped after the same round; `on_round` hears of the first."""
    tell, ran_on = on_note or (lambda note: None), environment()
    note = Note(f"one of {len(configs)} lanes: the seconds of a round are those of all, divided by {len(configs)}")
    with ExitStack() as stack:
        stack.enter_context(hardware(configs[0]))
        lanes = [_opened(stack, *given, ran_on) for given in zip(configs, folders, strict=True)]
        if len({lane.state.round for lane in lanes}) > 1:
            raise RunFolderError("these runs stopped after different rounds", "go on with each of them alone")
        for lane in lanes:
            begin(lane.folder, lane.prepared, [*lane.prepared.notes, note], tell)
            lane.folder.store.set_meta(LANES, str(len(lanes)))
            stack.enter_context(ending(lane.folder))
        with Stop(tell) as stop:
            _rounds(lanes, stop, on_round, tell)
    return [load_run(path) for path in folders]


def rounds_done(path: Path) -> int:
    """The round that a stopped run would go on from, as far as can be seen without reading its checkpoints."""
    if not (path / CONFIG).exists():
        return 0
    names = [entry.name.removeprefix("round-") for entry in (path / "checkpoints").glob("round-*")]
    return max((int(name) for name in names if name.isdigit()), default=0)


def _opened(stack: ExitStack, config: Config, path: Path, ran_on: Mapping[str, object]) -> Lane:
    """A run that begins, or goes on where it was stopped."""
    prepared = prepare(config)
    if not (path / CONFIG).exists():
        folder = stack.enter_context(RunFolder.create(path, config.resolved(), ran_on))
        return Lane(folder, prepared, prepared.setting.start())
    folder = stack.enter_context(RunFolder.open(path))
    folder.claim()
    check_same_data(folder, prepared)
    restore_constants(folder.path, prepared.setting.methods)
    state, notes = last_state(folder, prepared)
    folder.set_status("running")
    return Lane(folder, replace(prepared, notes=[*prepared.notes, *notes]), state)


def _rounds(lanes: Sequence[Lane], stop: Stop, on_round: OnRound | None, tell: OnNote) -> None:
    prepared, config = [lane.prepared for lane in lanes], lanes[0].prepared.config
    whole, engine, stored = Lanes([p.setting for p in prepared]), Vectorised(chunk=MOST), time.monotonic()
    while lanes[0].state.round < config.rounds:
        cohorts = [cohort_of(p, lanes[0].state.round) for p in prepared]
        engine, states, records = _played(whole, prepared, [lane.state for lane in lanes], cohorts, engine)
        for lane, state, own, cohort in zip(lanes, states, records, cohorts, strict=True):
            lane.state = state
            lane.records.append(own)
            lane.changed.update(cohort)
        stopping, last = stop.asked, states[0].round == config.rounds
        long_ago = time.monotonic() - stored > OFTEN
        if last or stopping or long_ago or states[0].round % (config.checkpoint.every or 1) == 0:
            _store(lanes)
            stored = time.monotonic()
        for note in records[0].notes:
            tell(note)
        try:
            if on_round is not None:
                on_round(RoundDone.of(records[0], config.rounds))
        except KeyboardInterrupt:  # a listener may end the runs, which then go on from here
            _store(lanes)
            raise
        if stopping and not last:
            raise KeyboardInterrupt


def _store(lanes: Sequence[Lane]) -> None:
    for lane in lanes:
        lane.store()


def score_together(prepared: Sequence[Prepared], states: Sequence[State], part: str) -> list[Report]:
    """One more round for all clients of every lane, of which only the scores on a part of the data are of interest."""
    lanes, clients = Lanes([p.setting for p in prepared]), [p.clients for p in prepared]
    _, ends = _within_memory(lambda engine: lanes.run_round(states, clients, engine, part), Vectorised(chunk=MOST))
    return [report for _, report in ends]


def _played(
    lanes: Lanes, prepared: Sequence[Prepared], states: list[State], cohorts: list[list[int]], engine: Vectorised
) -> tuple[Vectorised, list[State], list[RoundRecord]]:
    engine, ends = _within_memory(lambda engine: _round(lanes, prepared, states, cohorts, engine), engine)
    return engine, *ends


def _within_memory(work: Callable[[Vectorised], Any], engine: Vectorised) -> tuple[Vectorised, Any]:
    """What comes of some work; if the GPU's memory does not suffice, with fewer clients at once from now on."""
    while True:
        try:
            return engine, work(engine)
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
