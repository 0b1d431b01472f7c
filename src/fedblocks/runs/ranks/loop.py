"""The rounds of a run on several ranks: played by all, recorded and stored by the first."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from fedblocks.core.errors import Interrupted
from fedblocks.core.state import State
from fedblocks.runs.evaluations import OnEvaluation, tell_of_evaluation
from fedblocks.runs.loop import OFTEN, Lane, begin, ending, note_stop, save
from fedblocks.runs.progress import OnNote, OnRound, RoundDone
from fedblocks.runs.ranks.checkpoints import gathered_state, serve_shard
from fedblocks.runs.ranks.errors import RankLost
from fedblocks.runs.ranks.rounds import RankRun
from fedblocks.runs.rounds import cohort_of
from fedblocks.runs.stopping import EarlyStopping, Stop, StopRun
from fedblocks.runs.storage.folder import RunFolder
from fedblocks.runs.storage.main_metric import MainMetric
from fedblocks.runs.storage.record import Note, RoundRecord

# how a listener wants a run to end
INTERRUPTED = "interrupted"  # the way Ctrl-C does
ENOUGH = "enough"  # here, as finished


@dataclass(eq=False)
class RankLoop:
    """A run, where it stands, and whom the first rank tells of it."""

    run: RankRun
    path: Path
    folder: RunFolder | None  # of the first rank
    state: State
    on_round: OnRound | None
    on_note: OnNote | None
    notes: list[Note] = field(default_factory=list)  # what is to be known before it begins
    changed: set[int] = field(default_factory=set)  # clients that trained since the last checkpoint
    stored: float = field(default_factory=time.monotonic)
    on_evaluation: OnEvaluation | None = None
    patience: EarlyStopping | None = None  # of the first rank

    def carry_out(self) -> None:
        """The rounds that are left; the first rank writes how they ended."""
        ranks = self.run.ranks
        with ExitStack() as stack:
            lane = self._lane()
            stack.enter_context(_ending_elsewhere() if lane is None else ending(lane))
            goes_on = ranks.lead(self._begin, lambda message: None)
            stack.enter_context(ranks.watched())
            stack.enter_context(_resumable(self.path))
            if goes_on:
                self._rounds(stack.enter_context(Stop(self._tell)))
            if self.folder is not None:
                self.folder.set_status("finished")

    def _lane(self) -> Lane | None:
        """The run as that of one process; none at ranks that write nothing."""
        if self.folder is None:
            return None
        return Lane(self.folder, self.run.prepared, self.state, self.notes)

    def _begin(self) -> bool:
        """Whether there is a round to be played."""
        lane = self._lane()
        assert lane is not None and self.folder is not None
        begin(lane, self._tell)
        self.patience = lane.patience
        self.folder.store.set_meta("clients", self.run.clients_text)
        return not lane.is_whole

    def _tell(self, note: Note) -> None:
        if self.run.ranks.first and self.on_note is not None:
            self.on_note(note)

    def _rounds(self, stop: Stop) -> None:
        prepared, ranks = self.run.prepared, self.run.ranks
        config, engine = prepared.config, prepared.engine
        while self.state.round < config.rounds:
            cohort = cohort_of(prepared, self.state.round)
            engine, (self.state, record) = self.run.play(self.state, engine)
            self.changed.update(cohort)
            said = ranks.share([stop.asked, time.monotonic() - self.stored > OFTEN])
            stopping = any(asked for asked, _ in said)
            last = self.state.round == config.rounds
            often = self.state.round % (config.checkpoint.every or 1) == 0
            due = last or stopping or said[0][1] or often
            heard = self._keep(record, due)
            if heard and not due:
                self._keep(None, True)
            if heard == ENOUGH:
                return
            if (stopping or heard) and not last:
                raise KeyboardInterrupt

    def _keep(self, record: RoundRecord | None, due: bool) -> str:
        """Write a round down, and the state if that is due, and tell of it; how a listener wants
        the run to end, if it does. The first rank writes, and fetches what it needs of the others.
        """
        ranks, private = self.run.ranks, self.state.private
        gathered = gathered_state(ranks, private) if due else None

        def at_first() -> str:
            assert self.folder is not None
            self.folder.refuse_moved()
            if record is not None:
                self.folder.store.record_round(record)
            if gathered is not None:
                whole = replace(self.state, private=gathered)
                save(self.folder, self.run.prepared.config, whole, self.changed)
            return "" if record is None else self._tell_of(record)

        heard = ranks.lead(at_first, lambda message: serve_shard(ranks, private, message))
        if due:
            self.changed = set()
            self.stored = time.monotonic()
        return str(heard)

    def _tell_of(self, record: RoundRecord) -> str:
        for note in record.notes:
            self._tell(note)
        try:
            prepared = self.run.prepared
            metric = MainMetric.of(prepared.experiment.data.task)
            population = len(prepared.clients)
            done = RoundDone.of(record, prepared.config.rounds, metric, population)
            tell_of_evaluation(self.on_evaluation, prepared, self.state, record)
            for listener in (self.on_round, self.patience):
                if listener is not None:
                    listener(done)
        except KeyboardInterrupt:
            return INTERRUPTED
        except StopRun as reason:
            assert self.folder is not None
            note_stop(self.folder, self.state.round, reason, self._tell)
            return ENOUGH
        return ""


@contextmanager
def _resumable(path: Path) -> Iterator[None]:
    """The loss of a rank is told with what to do about it."""
    try:
        yield
    except RankLost as lost:
        lost.fix = f"go on with as many ranks as you like: ... fedblocks resume {path}"
        raise


@contextmanager
def _ending_elsewhere() -> Iterator[None]:
    """How a run ends at a rank that writes nothing."""
    try:
        yield
    except KeyboardInterrupt as error:
        stopped = Interrupted("stopped; the first rank says what is stored")
        vars(stopped)["silent"] = True
        raise stopped from error
