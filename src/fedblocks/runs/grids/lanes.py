"""Runs that differ in seed or learning rate only, done as lanes of one on a GPU; each
in a folder of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from fedblocks.config.model import Config
from fedblocks.core.errors import RunFolderError
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
from fedblocks.runs.run import check_same_data, check_untouched, hardware, last_state
from fedblocks.runs.storage.constants import restore_constants
from fedblocks.runs.storage.environment import environment
from fedblocks.runs.storage.folder import CONFIG, RunFolder
from fedblocks.runs.storage.frozen import check_frozen
from fedblocks.runs.storage.record import LANES, Note

MOST = 512  # clients in one stack


def worth_it(prepared: Sequence[Prepared]) -> bool:
    """Whether runs can and should be lanes: several, on a GPU, on the vectorised engine."""
    on_gpu = all(
        p.experiment.data.x.device.type == "cuda" and isinstance(p.engine, Vectorised)
        for p in prepared
    )
    return len(prepared) > 1 and on_gpu and fits(prepared)


def is_mapped(prepared: Prepared) -> bool:
    """Whether a run would not rather be done client by client, as one with a large net on a GPU."""
    return prepared.experiment.data.x.device.type != "cuda" or isinstance(
        prepared.engine, Vectorised
    )


def fits(prepared: Sequence[Prepared]) -> bool:
    """Whether runs can be lanes of one."""
    first = prepared[0].config
    same = all(_pace(p.config) == _pace(first) for p in prepared)
    return same and why_not([p.experiment for p in prepared]) is None


def _pace(config: Config) -> tuple[object, ...]:
    return (
        config.rounds,
        config.evaluation,
        config.checkpoint.every,
        config.threads,
        config.precision,
    )


def has_room(prepared: Sequence[Prepared]) -> bool:
    """Whether the cohorts of these runs are one stack."""
    return sum(p.cohort for p in prepared) <= MOST


def run_together(
    configs: Sequence[Config],
    folders: Sequence[Path],
    on_round: OnRound | None = None,
    on_note: OnNote | None = None,
) -> list[RunResult]:
    """Runs as lanes of one, new ones or such as were stopped after the same round;
    `on_round` hears of the first.
    """
    ran_on = environment()
    count = len(configs)
    seconds = f"the seconds of a round are those of all, divided by {count}"
    note = Note(f"one of {count} lanes: {seconds}")
    with ExitStack() as stack:
        stack.enter_context(hardware(configs[0]))
        lanes = [
            _open(stack, config, path, ran_on)
            for config, path in zip(configs, folders, strict=True)
        ]
        if len({lane.state.round for lane in lanes}) > 1:
            raise RunFolderError(
                "these runs stopped after different rounds", "go on with each of them alone"
            )
        for lane in lanes:
            lane.notes.append(note)
            lane.folder.store.set_meta(LANES, str(count))
        carry_out(lanes, Vectorised(chunk=MOST), on_round, on_note)
    return [load_run(path) for path in folders]


def rounds_done(path: Path) -> int:
    """The round that a stopped run would go on from, as far as can be seen without
    reading its checkpoints.
    """
    if not (path / CONFIG).exists():
        return 0
    names = [entry.name.removeprefix("round-") for entry in (path / "checkpoints").glob("round-*")]
    return max((int(name) for name in names if name.isdigit()), default=0)


def _open(stack: ExitStack, config: Config, path: Path, ran_on: Mapping[str, object]) -> Lane:
    """A run that begins, or goes on where it was stopped."""
    prepared = prepare(config)
    if not (path / CONFIG).exists():
        folder = stack.enter_context(RunFolder.create(path, config.resolved(), ran_on))
        return Lane(folder, prepared, prepared.experiment.start(), [*prepared.notes])
    folder = stack.enter_context(RunFolder.open(path))
    folder.claim()
    check_untouched(folder)
    check_same_data(folder, prepared)
    restore_constants(folder.path, prepared.experiment.methods)
    check_frozen(folder, prepared.experiment)
    state, notes = last_state(folder, prepared)
    folder.set_status("running")
    return Lane(folder, prepared, state, [*prepared.notes, *notes])


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
