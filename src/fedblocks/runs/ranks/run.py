"""Start or resume a run as one of several ranks. `fedblocks run` and `fedblocks.run` come here by
themselves where torchrun has started them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch.distributed as dist

from fedblocks.config.code.ingredients import Ingredients, check_same
from fedblocks.config.model import Config
from fedblocks.config.sources import Source
from fedblocks.core.state import State
from fedblocks.runs.evaluations import OnEvaluation
from fedblocks.runs.progress import OnNote, OnRound
from fedblocks.runs.ranks.build import prepare_part
from fedblocks.runs.ranks.checkpoints import scattered_state
from fedblocks.runs.ranks.loop import RankLoop
from fedblocks.runs.ranks.ranks import Ranks
from fedblocks.runs.ranks.rounds import RankRun
from fedblocks.runs.storage import checkpoint
from fedblocks.runs.storage.environment import environment
from fedblocks.runs.storage.folder import RunFolder
from fedblocks.runs.storage.going_on import notes_on_skipped, notes_on_starting_anew
from fedblocks.runs.storage.record import Note
from fedblocks.runs.storage.states import state_of

# the objects that a run was made of, where it was made of objects
Lookup = Callable[[Config], Ingredients | None]


def run_part(
    ranks: Ranks,
    config: Config,
    out: Path,
    on_round: OnRound | None = None,
    on_note: OnNote | None = None,
    on_evaluation: OnEvaluation | None = None,
) -> Path:
    """This rank's part of a new run; the folder is the first rank's, and so is its name."""
    from fedblocks.runs.run import hardware  # it comes here, too

    path = Path(ranks.tell(str(out)))
    run = prepare_part(ranks, config)
    with hardware(config), ExitStack() as stack:
        create = lambda: stack.enter_context(
            RunFolder.create(path, config.resolved(), environment() | setting_of(run))
        )
        folder = _at_first(ranks, create)
        state, notes = run.experiment.start(), run.prepared.notes
        loop = RankLoop(run, path, folder, state, on_round, on_note, notes)
        loop.on_evaluation = on_evaluation
        loop.carry_out()
    ranks.tell()  # the first has closed the folder
    return path


def resume_part(
    ranks: Ranks,
    path: Path,
    ingredients_for: Lookup,
    on_round: OnRound | None = None,
    on_note: OnNote | None = None,
    on_evaluation: OnEvaluation | None = None,
    *,
    rounds: int | str | None = None,
) -> Path:
    """Go on with a run, whatever number of ranks played it so far; only the first needs to see its
    folder.
    """
    from fedblocks.runs.run import hardware

    path = Path(ranks.tell(str(path)))
    with ExitStack() as stack:
        folder = _at_first(ranks, lambda: stack.enter_context(RunFolder.open(path)))
        config = _config(ranks, folder, ingredients_for, rounds)
        if config is not None:
            run = prepare_part(ranks, config)
            state, notes = _last_state(ranks, folder, run, rounds is not None)
            with hardware(config):
                loop = RankLoop(run, path, folder, state, on_round, on_note, notes)
                loop.on_evaluation = on_evaluation
                loop.carry_out()
    ranks.tell()
    return path


def setting_of(run: RankRun) -> dict[str, Any]:
    """How a run is spread, for the record of its environment: nothing of it decides the result."""
    return {
        "engine": run.prepared.engine.name,
        "ranks": run.ranks.count,
        "backend": dist.get_backend(run.ranks.group),
    }


def _at_first(ranks: Ranks, work: Any) -> Any:
    """What only the first rank has; an error of it ends all."""
    ends: list[Any] = []
    ranks.lead(lambda: ends.append(work()), lambda message: None)
    return ends[0] if ends else None


def _config(
    ranks: Ranks, folder: RunFolder | None, ingredients_for: Lookup, rounds: int | str | None
) -> Config | None:
    """The configuration that a run was started with, at every rank; None: it is finished."""
    ends: list[Config | None] = []

    def at_first() -> Any:
        assert folder is not None
        ends.append(_claimed_config(folder, ingredients_for, rounds))
        config = ends[0]
        if config is None:
            return None
        return {
            "table": folder.config,
            "source": [config.source.name, config.source.text],
            "engine": config.engine,
        }

    said = ranks.lead(at_first, lambda message: None)
    if said is None or ends:
        return ends[0] if ends else None
    return _told_config(said, ingredients_for)


def _told_config(said: dict[str, Any], ingredients_for: Lookup) -> Config:
    """The configuration of a run at a rank that need not see its folder."""
    source = Source(*said["source"])
    config = Config.stored(said["table"], source)
    ingredients = ingredients_for(config)
    if config.is_of_objects and ingredients is not None:
        check_same(config, ingredients)
        config = config.of_objects(ingredients)
    elif not config.is_of_objects:
        config = Config.of(said["table"], source)
    return config.model_copy(update={"engine": said["engine"]})


def _claimed_config(
    folder: RunFolder, ingredients_for: Lookup, rounds: int | str | None
) -> Config | None:
    from fedblocks.runs.extension import extend, is_stopped_early
    from fedblocks.runs.result import config_of, stored_config
    from fedblocks.runs.run import check_untouched, refuse_real, with_the_same_engine

    folder.claim()
    check_untouched(folder)
    goes_on = folder.status != "finished" or is_stopped_early(folder) or rounds is not None
    if rounds is not None:
        extend(folder, rounds)
    ingredients = ingredients_for(stored_config(folder))
    config = config_of(folder, ingredients) if goes_on or ingredients is not None else None
    if config is None or not goes_on:
        return None
    refuse_real(folder)
    config = with_the_same_engine(config, folder)
    if config.engine == "processes":  # which ends where a sequential one ends, to the bit
        config = config.model_copy(update={"engine": "sequential"})
    return config


def _last_state(
    ranks: Ranks, folder: RunFolder | None, run: RankRun, is_extended: bool
) -> tuple[State, list[Note]]:
    """Where to go on, as each rank needs it."""
    from fedblocks.runs.run import changes_since, refuse_other_blocks

    checkpoint_there = _at_first(ranks, lambda: _look_for_checkpoint(folder, run, is_extended))
    _same_constants(ranks, run)
    start = run.experiment.start()
    notes = list(run.prepared.notes)
    if folder is not None:
        notes += changes_since(folder, ranks.count)
    if not ranks.tell(checkpoint_there):
        return start, notes if folder is None else [*notes, *notes_on_starting_anew(folder)]
    place = (folder.checkpoints, folder.store.last_round() or 0) if folder is not None else None
    loaded, skipped = scattered_state(ranks, run.experiment.owners, place)
    state = state_of(loaded, run.experiment.data.device)
    ranks.together(lambda: refuse_other_blocks(state, start))
    _at_first(ranks, lambda: _drop_later(folder, state.round))
    return state, [*notes, *notes_on_skipped(state.round, skipped)]


def _drop_later(folder: RunFolder | None, round: int) -> None:
    assert folder is not None
    checkpoint.drop_later(folder.checkpoints, round)


def _look_for_checkpoint(folder: RunFolder | None, run: RankRun, is_extended: bool) -> bool:
    from fedblocks.runs.extension import write_extension
    from fedblocks.runs.sameness import check_same_data
    from fedblocks.runs.storage.behaviour import check_behaviour
    from fedblocks.runs.storage.constants import restore_constants
    from fedblocks.runs.storage.frozen import check_frozen

    assert folder is not None
    check_same_data(folder, run.prepared)
    restore_constants(folder.path, run.experiment.methods)
    check_frozen(folder, run.experiment)
    check_behaviour(folder, run.experiment)
    if is_extended:
        write_extension(folder)
    folder.set_status("running")
    return checkpoint.has_checkpoints(folder.checkpoints)


def _same_constants(ranks: Ranks, run: RankRun) -> None:
    """Give the nets of all ranks the constants that those of the first have."""
    methods = run.experiment.methods.items()
    own = {group: method.net.constants for group, method in methods} if ranks.first else {}
    constants = ranks.share_tree(own)[0]
    if not ranks.first:
        for group, method in methods:
            if constants.get(group):
                method.net.set_constants(constants[group])
