"""The rounds of a run, or of several runs that are lanes of one: played, recorded and stored.

A run alone is recorded after every round, so that it can be watched. Several are recorded when a
checkpoint is due, since a commit for each would cost more than their round: a kill costs the rounds
since then, as it would cost a run alone the rounds since its last checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

from fedblocks.config.model import Config
from fedblocks.core.errors import Interrupted, UserError
from fedblocks.core.forward_errors import tell_forward_errors
from fedblocks.core.state import State
from fedblocks.engines.lanes.lanes import Lanes
from fedblocks.engines.round import Engine
from fedblocks.runs.build import Prepared
from fedblocks.runs.changed_data import note_changed_data
from fedblocks.runs.clients import clients_text
from fedblocks.runs.evaluations import OnEvaluation, tell_of_evaluation
from fedblocks.runs.patience import patience_of
from fedblocks.runs.progress import OnNote, OnRound, RoundDone
from fedblocks.runs.rounds import cohort_of, play
from fedblocks.runs.sampling import TRACE
from fedblocks.runs.scored import POPULATION
from fedblocks.runs.stopping import EarlyStopping, Stop, StopRun
from fedblocks.runs.storage import checkpoint, code_record
from fedblocks.runs.storage.behaviour import behaviour_facts
from fedblocks.runs.storage.constants import store_constants
from fedblocks.runs.storage.folder import RunFolder, Status
from fedblocks.runs.storage.frozen import store_frozen
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
    on_round: OnRound | None = None  # hears of this run alone; may raise `Left`
    on_evaluation: OnEvaluation | None = None
    patience: EarlyStopping | None = None  # where its configuration asks for it
    records: list[RoundRecord] = field(default_factory=list)
    changed: set[int] = field(default_factory=set)  # clients that trained since the last checkpoint
    has_ended: bool = False  # before others beside it

    @property
    def is_whole(self) -> bool:
        """Whether no round is left."""
        is_over = self.patience is not None and self.patience.is_over
        return is_over or self.state.round >= self.prepared.config.rounds

    def accept(self, state: State, record: RoundRecord) -> None:
        """A round was played."""
        self.changed.update(cohort_of(self.prepared, self.state.round))
        self.state = state
        self.records.append(record)
        self.folder.refuse_moved()

    def end(self, status: Status) -> None:
        """The run is over while others go on."""
        self.store()
        self.folder.set_status(status)
        self.has_ended = True

    def write_records(self) -> None:
        if self.records:
            self.folder.store.record_round(*self.records)
        self.records = []

    def store(self) -> None:
        """Records first: a kill in between makes `resume` record those rounds once more."""
        self.write_records()
        self.prepared.experiment.frozen.check()
        if self.changed:
            save(self.folder, self.prepared.config, self.state, self.changed)
        self.changed = set()


class Left(KeyboardInterrupt):
    """Stops a run that is not promising the way Ctrl-C does: it could be resumed. Lanes beside
    it go on.
    """


# lanes to go on with, in the place of those that have ended
Next = Callable[[Sequence[Lane]], Sequence[Lane]]


@tell_forward_errors()
def carry_out(
    lanes: Sequence[Lane],
    engine: Engine,
    on_round: OnRound | None,
    on_note: OnNote | None,
    more: Next = lambda going: (),
) -> None:
    """The rounds that are left, under a status that says how they ended; `on_round` hears of the
    first lane. `more` is told which lanes go on when one has ended, and says which join them.
    """
    tell = on_note or (lambda note: None)
    with ExitStack() as stack:

        def enter(new: Sequence[Lane]) -> list[Lane]:
            for lane in new:
                begin(lane, tell)
                stack.enter_context(ending(lane))
            return list(new)

        stop = stack.enter_context(Stop(tell))
        going = enter(lanes)
        while going:
            engine = _rounds(going, engine, stop, on_round, tell)
            going = [lane for lane in going if not lane.has_ended]
            going += enter(more(going))


def begin(lane: Lane, tell: OnNote) -> None:
    """Write down what a run is about to work on, and what is to be known of it."""
    store, prepared = lane.folder.store, lane.prepared
    store_constants(lane.folder.path, prepared.experiment.methods)
    store_frozen(lane.folder, prepared.experiment)
    facts = {
        "federation": prepared.hash,
        KEY: MainMetric.of(prepared.experiment.data.task).text(),
        "engine": prepared.engine.name,
        "clients": clients_text(prepared.experiment.data),
        POPULATION: str(len(prepared.clients)),
        **behaviour_facts(store, prepared.experiment),
    }
    if trace := prepared.sampling.content_hash:
        facts[TRACE] = trace
    known = {row["text"] for row in store.rows("SELECT text FROM notes")}
    lane.patience = patience_of(prepared.config, store, lane.state.round, tell)
    store.write_facts(facts, [note for note in lane.notes if note.text not in known])
    for note in lane.notes:
        tell(note)


def _rounds(
    lanes: Sequence[Lane], engine: Engine, stop: Stop, on_round: OnRound | None, tell: OnNote
) -> Engine:
    """Rounds of all lanes until at least one has ended; the engine that could do them."""
    prepared = [lane.prepared for lane in lanes]
    together = Lanes([own.experiment for own in prepared])
    stored = time.monotonic()
    _end_whole(lanes, tell)
    while not any(lane.has_ended for lane in lanes):
        engine, ends = play(together, prepared, [lane.state for lane in lanes], engine)
        for lane, end in zip(lanes, ends, strict=True):
            lane.accept(*end)
        stopping = stop.asked and not all(lane.is_whole for lane in lanes)
        at_once = stopping or time.monotonic() - stored > OFTEN
        stored = time.monotonic() if at_once else stored
        for lane in lanes:
            if at_once or _is_checkpoint_due(lane):
                lane.store()
            elif len(lanes) == 1:
                lane.write_records()
        _tell_of_round([record for _, record in ends], lanes, on_round, tell)
        if stopping:
            raise KeyboardInterrupt
        _end_whole(lanes, tell)
    return engine


def _end_whole(lanes: Sequence[Lane], tell: OnNote) -> None:
    for lane in lanes:
        if lane.is_whole and not lane.has_ended:
            note_changed_data(lane.prepared.config, lane.folder, tell)
            lane.end("finished")


def _is_checkpoint_due(lane: Lane) -> bool:
    return lane.is_whole or lane.state.round % (lane.prepared.config.checkpoint.every or 1) == 0


def _tell_of_round(
    records: Sequence[RoundRecord], lanes: Sequence[Lane], on_round: OnRound | None, tell: OnNote
) -> None:
    for note in records[0].notes:
        tell(note)
    try:
        for lane, record in zip(lanes, records, strict=True):
            _tell_of_lane(lane, record, tell)
        if on_round is not None:
            on_round(_done(lanes[0], records[0]))
    except StopRun as reason:
        for lane in lanes:
            _end_here(lane, reason, tell)
    except KeyboardInterrupt:  # a listener may end the runs, which then go on from here
        _store(lanes)
        raise


def _tell_of_lane(lane: Lane, record: RoundRecord, tell: OnNote) -> None:
    """Tell those who hear of one run alone."""
    try:
        tell_of_evaluation(lane.on_evaluation, lane.prepared, lane.state, record)
        for listener in (lane.on_round, lane.patience):
            if listener is not None:
                listener(_done(lane, record))
    except Left:
        lane.end("interrupted")
    except StopRun as reason:
        _end_here(lane, reason, tell)


def _done(lane: Lane, record: RoundRecord) -> RoundDone:
    metric = MainMetric.of(lane.prepared.experiment.data.task)
    own = lane.prepared
    return RoundDone.of(record, own.config.rounds, metric, len(own.clients))


def _end_here(lane: Lane, reason: StopRun, tell: OnNote) -> None:
    """Store what there is, and say why it is all."""
    if not lane.has_ended:
        note_stop(lane.folder, lane.state.round, reason, tell)
        lane.end("finished")


def note_stop(folder: RunFolder, round: int, reason: StopRun, tell: OnNote) -> None:
    """Say why a run ends before its last round."""
    text = f"stopped after round {round}" + (f": {reason}" if str(reason) else "")
    folder.store.note(text)
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
def ending(lane: Lane) -> Iterator[None]:
    """How a run ended early is written to its folder."""
    try:
        yield
    except BaseException as error:
        if not lane.has_ended:
            _end_with(lane.folder, error)
        raise


def _end_with(folder: RunFolder, error: BaseException) -> None:
    if isinstance(error, Interrupted):  # another lane's
        folder.set_status("interrupted")
        return
    if isinstance(error, KeyboardInterrupt):
        folder.set_status("interrupted")
        done = folder.store.last_round() or 0
        raise Interrupted(
            f"stopped; round {done} is stored", f"go on with: {_go_on(folder)}"
        ) from error
    with suppress(UserError):  # a full disk must not hide the first error
        folder.set_status("failed")


def _go_on(folder: RunFolder) -> str:
    """The command that resumes a run, with the code that it needs."""
    files = dict.fromkeys(
        entry["file"] for entry in code_record.read_entries(folder.path) if "file" in entry
    )
    return " ".join(["fedblocks resume", str(folder.path), *(f"--code {file}" for file in files)])
