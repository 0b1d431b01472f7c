"""Runs that differ in seeds and numbers only, done as lanes of one; each in a folder of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from fedblocks.config.model import Config
from fedblocks.core.state import State
from fedblocks.engines.close_round import Report
from fedblocks.engines.lanes.lanes import Lanes
from fedblocks.engines.lanes.likeness import why_not
from fedblocks.engines.vectorised import Vectorised
from fedblocks.runs.build import Prepared, prepare
from fedblocks.runs.loop import Lane, carry_out
from fedblocks.runs.progress import OnNote, OnRound
from fedblocks.runs.result import RunResult, load_run
from fedblocks.runs.rounds import attempt
from fedblocks.runs.run import check_untouched, hardware, last_state
from fedblocks.runs.sameness import check_same_run
from fedblocks.runs.storage.environment import environment
from fedblocks.runs.storage.folder import CONFIG, RunFolder
from fedblocks.runs.storage.record import LANES, Note

MOST = 512  # clients in one stack


def worth_it(prepared: Sequence[Prepared]) -> bool:
    """Whether runs can and should be lanes: several, for all of which a stack of clients is the
    fastest way.
    """
    stacked = all(isinstance(own.engine, Vectorised) for own in prepared)
    return len(prepared) > 1 and stacked and fits(prepared)


def is_mapped(prepared: Prepared) -> bool:
    """Whether a run would not rather be done client by client, as one with a large net on a GPU."""
    return prepared.experiment.data.device.type != "cuda" or isinstance(prepared.engine, Vectorised)


def fits(prepared: Sequence[Prepared]) -> bool:
    """Whether runs can be lanes of one."""
    first = prepared[0].config
    same = all(_pace(p.config) == _pace(first) for p in prepared)
    return same and why_not([p.experiment for p in prepared]) is None


def _pace(config: Config) -> tuple[object, ...]:
    return config.evaluation, config.threads, config.precision


@dataclass(frozen=True, eq=False)
class Waiting:
    """A run that may become a lane, a new one or one that was stopped."""

    prepared: Prepared
    folder: Path
    on_round: OnRound | None = None  # hears of this run alone; may raise `Left`


def run_together(
    configs: Sequence[Config],
    folders: Sequence[Path],
    on_round: OnRound | None = None,
    on_note: OnNote | None = None,
) -> list[RunResult]:
    """Runs as lanes of one, new ones or such as were stopped, at whatever rounds;
    `on_round` hears of the first.
    """
    runs = zip(configs, folders, strict=True)
    run_queue([Waiting(prepare(config), path) for config, path in runs], on_round, on_note)
    return [load_run(path) for path in folders]


def run_queue(
    runs: Iterable[Waiting],
    on_round: OnRound | None = None,
    on_note: OnNote | None = None,
    most: int = MOST,
    at_once: int | None = None,
) -> None:
    """Runs one beside the other, as many as one stack has room for, or `at_once`; when one has
    ended, the next takes its place. One that does not fit the others waits until they have ended.
    """
    queue, ran_on = Queue(iter(runs), most, at_once or sys.maxsize), environment()
    while first := queue.take([]):
        with ExitStack() as stack:
            stack.enter_context(hardware(first[0].prepared.config))

            begin = partial(_begin, stack, ran_on)
            join = partial(_join, queue, begin)
            carry_out(begin(0, first), Vectorised(chunk=MOST), on_round, on_note, join)


Begin = Callable[[int, Sequence["Waiting"]], list[Lane]]


def _begin(
    stack: ExitStack, ran_on: Mapping[str, object], beside: int, runs: Sequence[Waiting]
) -> list[Lane]:
    return [_open(stack, one, ran_on, beside + len(runs)) for one in runs]


def _join(queue: Queue, begin: Begin, going: Sequence[Lane]) -> list[Lane]:
    """The lanes that take the place of those that have ended; none if nobody goes on: then
    another stack begins.
    """
    return begin(len(going), queue.take([lane.prepared for lane in going])) if going else []


@dataclass(eq=False)
class Queue:
    """Runs in the order in which they become lanes."""

    runs: Iterator[Waiting]
    most: int  # clients in one stack
    at_once: int  # runs in one stack, and runs that wait beside one
    waiting: list[Waiting] = field(default_factory=list)  # did not fit those that were going on

    def take(self, going: Sequence[Prepared]) -> list[Waiting]:
        """The next runs that fit beside those that go on."""
        taken: list[Waiting] = []

        def sort(one: Waiting) -> None:
            others = [*going, *(own.prepared for own in taken)]
            (taken if self._has_place(others, one.prepared) else self.waiting).append(one)

        before, self.waiting = self.waiting, []
        for one in before:
            sort(one)
        while len(going) + len(taken) < self.at_once > len(self.waiting):
            following = next(self.runs, None)
            if following is None:
                break
            sort(following)
        return taken

    def _has_place(self, others: Sequence[Prepared], one: Prepared) -> bool:
        if not others:
            return True
        has_room = sum(own.cohort for own in (*others, one)) <= self.most
        return has_room and len(others) < self.at_once and fits([others[0], one])


def _open(stack: ExitStack, waiting: Waiting, ran_on: Mapping[str, object], count: int) -> Lane:
    """A run that begins, or goes on where it was stopped."""
    prepared, path = waiting.prepared, waiting.folder
    seconds = f"the seconds of a round are those of all, divided by {count}"
    notes = [*prepared.notes, Note(f"one of {count} lanes: {seconds}")]
    if not (path / CONFIG).exists():
        resolved = prepared.config.resolved()
        folder = stack.enter_context(RunFolder.create(path, resolved, ran_on))
        state = prepared.experiment.start()
    else:
        folder = stack.enter_context(RunFolder.open(path))
        folder.claim()
        check_untouched(folder)
        check_same_run(folder, prepared)
        state, more = last_state(folder, prepared)
        notes = [*notes, *more]
        folder.set_status("running")
    folder.store.set_meta(LANES, str(count))
    return Lane(folder, prepared, state, notes, waiting.on_round)


def score_together(
    prepared: Sequence[Prepared], states: Sequence[State], part: str
) -> list[Report]:
    """One more round for all clients of every lane, of which only the scores on a part
    of the data are of interest.
    """
    lanes = Lanes([p.experiment for p in prepared])
    clients = [p.clients for p in prepared]
    count = sum(map(len, clients))
    play = lambda engine: lanes.run_round(states, clients, engine, part)
    _, ends = attempt(play, Vectorised(chunk=MOST), count, [])
    return [report for _, report in ends]
