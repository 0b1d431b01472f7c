"""Runs: start one, resume one. The command `fedblocks run` does no more than this."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import torch

from fedblocks.config.code.ingredients import Ingredients
from fedblocks.config.model import Config
from fedblocks.core.errors import CheckpointError, RunFolderError
from fedblocks.core.folder_names import check_folder_name
from fedblocks.core.parts import Blocks
from fedblocks.core.precision import half_precision
from fedblocks.core.state import State
from fedblocks.runs.build import Prepared, prepare
from fedblocks.runs.evaluations import OnEvaluation
from fedblocks.runs.extension import extend, is_stopped_early, write_extension
from fedblocks.runs.loop import Lane, carry_out
from fedblocks.runs.progress import OnNote, OnRound
from fedblocks.runs.ranks.joining import current_ranks
from fedblocks.runs.ranks.run import resume_part, run_part
from fedblocks.runs.result import RunResult, config_of, load_run
from fedblocks.runs.sameness import check_same_run
from fedblocks.runs.storage import checkpoint
from fedblocks.runs.storage.config_record import refuse_edited, remember_config
from fedblocks.runs.storage.environment import environment
from fedblocks.runs.storage.folder import REAL, RunFolder, command_for_real
from fedblocks.runs.storage.going_on import notes_on_skipped, notes_on_starting_anew
from fedblocks.runs.storage.record import Note
from fedblocks.runs.storage.states import state_of

RUNS = Path("runs")  # where runs go that were given no folder


def run(
    config: Config,
    out: str | Path | None = None,
    on_round: OnRound | None = None,
    on_note: OnNote | None = None,
    on_evaluation: OnEvaluation | None = None,
) -> RunResult:
    """Train as a configuration says, in a new folder; `on_round`, `on_note` and `on_evaluation`
    are told what happens.
    """
    path = Path(out) if out is not None else free_folder(f"{config.method.name}-{config.data.name}")
    ranks = current_ranks()
    if ranks is not None:
        listeners = on_round, on_note, on_evaluation
        return result_seen(run_part(ranks, config, path, *listeners))
    prepared = prepare(config)
    with (
        hardware(config),
        RunFolder.create(
            path, config.resolved(), {**environment(), "engine": prepared.engine.name, "ranks": 1}
        ) as folder,
    ):
        lane = Lane(folder, prepared, prepared.experiment.start(), prepared.notes)
        lane.on_evaluation = on_evaluation
        carry_out([lane], prepared.engine, on_round, on_note)
    return load_run(path)


def resume(
    path: str | Path,
    on_round: OnRound | None = None,
    on_note: OnNote | None = None,
    ingredients: Ingredients | None = None,
    on_evaluation: OnEvaluation | None = None,
    *,
    rounds: int | str | None = None,
) -> RunResult:
    """Go on with a run that was stopped, killed or failed; on the CPU it ends as if nothing had
    happened.

    A run that was made of Python objects needs the same `ingredients` again. `rounds` extends it.
    """
    ranks = current_ranks()
    if ranks is not None:
        listeners = on_round, on_note, on_evaluation
        part = resume_part(ranks, Path(path), lambda _: ingredients, *listeners, rounds=rounds)
        return result_seen(part)
    with RunFolder.open(Path(path)) as folder:
        folder.claim()
        check_untouched(folder)
        goes_on = folder.status != "finished" or is_stopped_early(folder) or rounds is not None
        if rounds is not None:
            extend(folder, rounds)
        config = config_of(folder, ingredients) if goes_on or ingredients is not None else None
        if config is not None and goes_on:
            refuse_real(folder)
            prepared = prepare(with_the_same_engine(config, folder))
            check_same_run(folder, prepared)
            state, notes = last_state(folder, prepared)
            if rounds is not None:
                write_extension(folder)
            folder.set_status("running")
            with hardware(prepared.config):
                lane = Lane(
                    folder, prepared, state, [*prepared.notes, *changes_since(folder), *notes]
                )
                lane.on_evaluation = on_evaluation
                carry_out([lane], prepared.engine, on_round, on_note)
    return load_run(path)


def result_seen(path: Path) -> RunResult:
    """What came out of a run of several ranks, where this rank's machine sees its folder."""
    if not path.is_dir():
        raise RunFolderError(
            f"the run has ended, but this machine does not see its folder, {path}",
            "give `out` on a disk that all machines share, or look at it on the first rank's",
        )
    return load_run(path)


def with_the_same_engine(config: Config, folder: RunFolder) -> Config:
    """The configuration of a run; the engine that was chosen for it stays, for the last
    bits may differ.
    """
    before = folder.store.meta("engine")
    return (
        config
        if before is None or config.engine != "auto"
        else config.model_copy(update={"engine": before})
    )


def refuse_real(folder: RunFolder) -> None:
    """What clients of a real federation keep is on their disks, not in the folder."""
    if folder.store.meta(REAL) is not None:
        raise RunFolderError(
            f"{folder.path} is a run of a real federation, whose clients hold a part of it",
            f"go on with: {command_for_real(folder.path)}",
        )


@contextmanager
def hardware(config: Config) -> Iterator[None]:
    """Threads and precision as a configuration says, and as before afterwards."""
    with products_in(config.precision), threads(config.threads):
        yield


@contextmanager
def products_in(precision: str) -> Iterator[None]:
    """Products as a configuration's `precision` says."""
    with tf32(precision == "tf32"), half_precision(precision == "bf16"):
        yield


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Products and convolutions on a GPU in tensor-float-32 or not; torch by itself
    allows it for convolutions.
    """
    switches: list[Any] = [torch.backends.cuda.matmul, torch.backends.cudnn]
    before = [switch.allow_tf32 for switch in switches]
    for switch in switches:
        switch.allow_tf32 = allowed
    try:
        yield
    finally:
        for number, value in enumerate(before):
            switches[number].allow_tf32 = value


@contextmanager
def threads(number: int | None) -> Iterator[None]:
    """Run on this many CPU threads, and on as many as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def free_folder(stem: str) -> Path:
    """The first of `runs/STEM-001`, `runs/STEM-002`, ... that does not exist."""
    name = check_folder_name(stem, "a run")
    return next(path for number in count(1) if not (path := RUNS / f"{name}-{number:03d}").exists())


def last_state(folder: RunFolder, prepared: Prepared) -> tuple[State, list[Note]]:
    """Where to go on: the newest whole checkpoint, or the start if there has never been one."""
    if not checkpoint.has_checkpoints(folder.checkpoints):
        return prepared.experiment.start(), notes_on_starting_anew(folder)
    loaded = checkpoint.load(folder.checkpoints, folder.store.last_round() or 0)
    state = state_of(loaded, prepared.experiment.data.device)
    refuse_other_blocks(state, prepared.experiment.start())
    checkpoint.drop_later(folder.checkpoints, loaded.round)
    return state, notes_on_skipped(loaded.round, loaded.skipped)


def refuse_other_blocks(state: State, start: State) -> None:
    """Refuse a state whose blocks are not those that the method starts with."""
    if _layout(state.server) != _layout(start.server):
        fix = "use the version of the program, and of the method, that started the run"
        raise CheckpointError(
            f"the checkpoint of round {state.round} holds other blocks than the method has", fix
        )


def _layout(blocks: Blocks) -> dict[str, dict[str, tuple[torch.dtype, torch.Size]]]:
    return {
        name: {key: (value.dtype, value.shape) for key, value in params.items()}
        for name, params in blocks.items()
    }


def check_untouched(folder: RunFolder) -> None:
    """Refuse a run whose record is damaged, or whose configuration was edited; it may
    have been given more rounds.
    """
    folder.store.verify()
    refuse_edited(folder.store, folder.config)
    remember_config(folder.store, folder.config)


def changes_since(folder: RunFolder, ranks: int = 1) -> list[Note]:
    """What differs from where the run was started and can change the last bits of its results."""
    before, now = {"ranks": 1, **folder.environment}, {**environment(), "ranks": ranks}
    watched = ("threads", "cpu", "devices", "versions", "ranks")
    differ = [key for key in watched if before.get(key) != now.get(key)]
    texts = [f"{key} {before.get(key)} -> {now.get(key)}" for key in differ]
    return [
        Note(f"not where it was started, last bits may differ: {text}", "warning") for text in texts
    ]
