"""The rounds of a run, or of several runs that are lanes of one: played, recorded and stored.

A run alone is recorded after every round, so that it can be watched. Several are recorded when a
checkpoint is due, since a commit for each would cost more than their round: a kill costs the rounds
since then, as it would cost a run alone the rounds since its last checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

from fedblocks.config.model import Config
from fedblocks.core.errors import Interrupted, UserError
from fedblocks.core.state import State
from fedblocks.engines.lanes.lanes import Lanes
from fedblocks.engines.round import Engine
from fedblocks.runs.build import Prepared
from fedblocks.runs.clients import clients_text
from fedblocks.runs.progress import OnNote, OnRound, RoundDone
from fedblocks.runs.rounds import cohort_of, play
from fedblocks.runs.stopping import Stop, StopRun
from fedblocks.runs.storage import checkpoint, code_record
from fedblocks.runs.storage.constants import store_constants
from fedblocks.runs.storage.folder import RunFolder
from fedblocks.runs.storage.main_metric import KEY, MainMetric
from fedblocks.runs.storage.record import Note, RoundRecord
from fedblocks.runs.storage.states import client_trees, shared_tree

OFTEN = 60.0  # seconds after which a run is stored, whatever its configuration says


@dataclass(eq=False)
class Lane:
    """A run, where it stands, and what of it is not on the disk yet."""

    folder: RunFolder
    prepared: Prepared
    state: State
    notes: list[Note]  # what is to be known of it before it begins
    records: list[RoundRecord] = field(default_factory=list)
    changed: set[int] = field(default_factory=set)  # clients that trained since the last checkpoint

    def write_records(self) -> None:
        if self.records:
            self.folder.store.record_round(*self.records)
        self.records = []

    def store(self) -> None:
        """Records first: a kill in between makes `resume` record those rounds once more."""
        self.write_records()
        if self.changed:
            save(self.folder, self.prepared.config, self.state, self.changed)
        self.changed = set()


def carry_out(
    lanes: Sequence[Lane], engine: Engine, on_round: OnRound | None, on_note: OnNote | None
) -> None:
    """The rounds that are left, under a status that says how they ended; `on_round`
    hears of the first lane.
    """
    tell = on_note or (lambda note: None)
    with ExitStack() as stack:
        for lane in lanes:
            begin(lane, tell)
            stack.enter_context(ending(lane.folder))
        stop = stack.enter_context(Stop(tell))
        _rounds(lanes, engine, stop, on_round, tell)


def begin(lane: Lane, tell: OnNote) -> None:
    """Write down what a run is about to work on, and what is to be known of it."""
    store, prepared = lane.folder.store, lane.prepared
    store_constants(lane.folder.path, prepared.experiment.methods)
    store.set_meta("federation", prepared.hash)
    store.set_meta(KEY, MainMetric.of(prepared.experiment.data.task).text())
    store.set_meta("engine", prepared.engine.name)
    store.set_meta("clients", clients_text(prepared.experiment.data))
    known = {row["text"] for row in store.rows("SELECT text FROM notes")}
    for note in lane.notes:
        tell(note)
        if note.text not in known:
            store.note(note.text, note.level)


def _rounds(
    lanes: Sequence[Lane], engine: Engine, stop: Stop, on_round: OnRound | None, tell: OnNote
) -> None:
    config = lanes[0].prepared.config
    prepared = [lane.prepared for lane in lanes]
    together = Lanes([own.experiment for own in prepared])
    stored = time.monotonic()
    while lanes[0].state.round < config.rounds:
        engine, ends = play(together, prepared, [lane.state for lane in lanes], engine)
        for lane, (state, record) in zip(lanes, ends, strict=True):
            lane.changed.update(cohort_of(lane.prepared, lane.state.round))
            lane.state = state
            lane.records.append(record)
            lane.folder.refuse_moved()
        round = lanes[0].state.round
        stopping = stop.asked
        last = round == config.rounds
        long_ago = time.monotonic() - stored > OFTEN
        if last or stopping or long_ago or round % (config.checkpoint.every or 1) == 0:
            _store(lanes)
            stored = time.monotonic()
        elif len(lanes) == 1:
            lanes[0].write_records()
        try:
            _tell_of_round(ends[0][1], lanes, on_round, tell)
        except StopRun as reason:
            _end_here(lanes, str(reason), tell)
            return
        if stopping and not last:
            raise KeyboardInterrupt


def _tell_of_round(
    record: RoundRecord, lanes: Sequence[Lane], on_round: OnRound | None, tell: OnNote
) -> None:
    for note in record.notes:
        tell(note)
    try:
        if on_round is not None:
            prepared = lanes[0].prepared
            metric = MainMetric.of(prepared.experiment.data.task)
            on_round(RoundDone.of(record, prepared.config.rounds, metric))
    except KeyboardInterrupt:  # a listener may end the runs, which then go on from here
        _store(lanes)
        raise


def _end_here(lanes: Sequence[Lane], reason: str, tell: OnNote) -> None:
    """Store what there is, and say why it is all."""
    _store(lanes)
    for lane in lanes:
        text = f"stopped after round {lane.state.round}" + (f": {reason}" if reason else "")
        lane.folder.store.note(text)
        tell(Note(text))


def _store(lanes: Sequence[Lane]) -> None:
    for lane in lanes:
        lane.store()


def save(folder: RunFolder, config: Config, state: State, changed: set[int]) -> None:
    """A checkpoint of a state; `changed` are the clients that trained since the last one."""
    checkpoint.save(
        folder.checkpoints,
        state.round,
        shared_tree(state),
        client_trees(state),
        changed,
        keep=config.checkpoint.keep,
        best_round=folder.store.best_round(),
    )


@contextmanager
def ending(folder: RunFolder) -> Iterator[None]:
    """How a run ended is written to its folder."""
    try:
        yield
    except KeyboardInterrupt as error:
        folder.set_status("interrupted")
        done = folder.store.last_round() or 0
        raise Interrupted(
            f"stopped; round {done} is stored", f"go on with: {_go_on(folder)}"
        ) from error
    except Interrupted:  # another lane's
        folder.set_status("interrupted")
        raise
    except BaseException:
        with suppress(UserError):  # a full disk must not hide the first error
            folder.set_status("failed")
        raise
    folder.set_status("finished")


def _go_on(folder: RunFolder) -> str:
    """The command that resumes a run, with the code that it needs."""
    files = dict.fromkeys(
        entry["file"] for entry in code_record.read_entries(folder.path) if "file" in entry
    )
    return " ".join(["fedblocks resume", str(folder.path), *(f"--code {file}" for file in files)])
