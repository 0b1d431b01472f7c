"""A search for the options that do best on validation data, by Optuna; the same call goes on
where the last one stopped.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import tomli_w

from fedblocks.config.model import Config
from fedblocks.config.options import Table
from fedblocks.config.presets import read_config
from fedblocks.core.errors import Interrupted, RunFolderError, UserError
from fedblocks.core.folder_names import check_folder_name
from fedblocks.engines.vectorised import Vectorised
from fedblocks.runs.build import prepare
from fedblocks.runs.grids.lanes import Waiting, run_queue
from fedblocks.runs.grids.space import Space, parse_space
from fedblocks.runs.loop import Left
from fedblocks.runs.progress import OnNote, OnRound, RoundDone, tell_once, warn_of
from fedblocks.runs.ranks.joining import refuse_ranks
from fedblocks.runs.run import RUNS, run
from fedblocks.runs.sameness import check_taken_over
from fedblocks.runs.shelf import shared_data
from fedblocks.runs.storage.folder import CONFIG, OTHER_FOLDER, write_atomically
from fedblocks.runs.storage.links import refuse_links
from fedblocks.runs.storage.main_metric import KEY, MainMetric

# in the folder of a search
PLAN = "tune.toml"  # what it searches
STUDY = "study.db"  # what it found
NAME = "fedblocks"  # of the study
CLIENTS = "clients"  # under which it keeps, by trial, how many a score is a mean over
REFUSED = "refused"  # under which it keeps, by trial, why one could not be
AT_ONCE = 8  # trials side by side: later ones learn from earlier ones


@dataclass(frozen=True)
class Trial:
    """One setting that was tried."""

    number: int
    state: str  # complete, pruned or fail
    # on validation data, in the mean over clients, of the last evaluation that it got to
    score: float | None
    options: Mapping[str, Any]
    metric: MainMetric = MainMetric()  # noqa: RUF009 - frozen; what the score is of
    clients: int = 0  # that the score is a mean over
    reason: str = ""  # why it was refused, and failed by that


@dataclass(frozen=True)
class Tuned:
    """What a search found."""

    folder: Path
    trials: list[Trial]
    best: Trial
    command: str  # that runs the best setting


@dataclass(frozen=True, eq=False)
class Search:
    """What is searched, and where."""

    what: str
    fixed: Sequence[str]  # changes that all trials have
    space: Space
    folder: Path
    on_trial: Callable[[Trial], None] | None  # hears of each trial that has ended
    on_note: OnNote  # hears of what the data and methods of trials have to say


def tune(
    what: str,
    changes: Sequence[str],
    trials: int = 20,
    out: Path | None = None,
    on_trial: Callable[[Trial], None] | None = None,
    on_note: OnNote | None = None,
) -> Tuned:
    """Search until there are as many trials in all as asked for; test data are never looked at."""
    refuse_ranks("tune")
    optuna = _optuna()
    space, fixed = parse_space(changes)
    base = _check_examples(what, fixed, space)
    name = f"tune-{base.method.name}-{base.data.name}-{_key(base, space)}"
    folder = out if out is not None else RUNS / check_folder_name(name, "a search")
    _begin(folder, base, space)
    study = _study(optuna, folder, base.seed)
    search = Search(what, fixed, space, folder, on_trial, tell_once(on_note or warn_of))
    ended = _ended_trials(study)
    left = trials - len(ended)
    with shared_data():
        _check_taken_over(search, ended)
        _try_settings(_ask(optuna, study, search, left))
    return _choose_best(what, fixed, folder, _ended_trials(study))


def _check_taken_over(search: Search, ended: Sequence[Trial]) -> None:
    """Refuse to go on with other code than that of earlier trials; each was like the first."""
    first = next((trial for trial in ended if trial.state == "complete"), None)
    path = search.folder / f"trial-{first.number:03d}" if first is not None else None
    if first is not None and path is not None and (path / CONFIG).exists():
        changes = [*search.fixed, *(f"{name}={value}" for name, value in first.options.items())]
        check_taken_over(path, _config(search.what, changes))


def _check_examples(what: str, fixed: Sequence[str], space: Space) -> Config:
    """Refuse a wrong name or value before the first trial; the last configuration that was read."""
    longest = max(len(one.examples) for one in space.values())
    for number in range(longest):
        ends = [
            f"{name}={one.examples[min(number, len(one.examples) - 1)]}"
            for name, one in space.items()
        ]
        config = _config(what, [*fixed, *ends])
    return config


def _choose_best(what: str, fixed: Sequence[str], folder: Path, ended: list[Trial]) -> Tuned:
    complete = [trial for trial in ended if trial.state == "complete"]
    if not complete:
        first = next((f"; trial {one.number}: {one.reason}" for one in ended if one.reason), "")
        fix = "search in a narrower range, or with more --trials"
        raise UserError(f"none of {len(ended)} trials came to its end{first}", fix)
    best = max(complete, key=_rank)
    changes = [*fixed, *(f"{name}={value}" for name, value in best.options.items())]
    words = [word for change in changes for word in ("--set", change)]
    command = shlex.join(["fedblocks", "run", what, *words])
    return Tuned(folder, ended, best, command)


def _rank(trial: Trial) -> tuple[int, float, int]:
    """The better, and among equals the earlier, the higher. A setting under which clients are
    refused must not win by the mean of those who are left.
    """
    score = -math.inf if trial.score is None else trial.metric.sign * trial.score
    return trial.clients, score, -trial.number


def _try_settings(runs: Iterator[Waiting]) -> None:
    """Carry out trials as they are asked for: side by side where their engine stacks clients."""
    first = next(runs, None)
    if first is None:
        return
    if isinstance(first.prepared.engine, Vectorised):
        run_queue(chain([first], runs), at_once=AT_ONCE)
        return
    for one in chain([first], runs):
        try:
            run(one.prepared.config, one.folder, one.on_round)
        except Interrupted as error:
            if not isinstance(error.__cause__, Left):
                raise


def _ask(optuna: ModuleType, study: Any, search: Search, left: int) -> Iterator[Waiting]:
    """Trials that are left, each asked for when there is room for its run."""
    for _ in range(left):
        trial = study.ask()
        chosen = {name: one.suggest(trial, name) for name, one in search.space.items()}
        for name, value in chosen.items():
            trial.set_user_attr(name, value)
        changes = [*search.fixed, *(f"{name}={value}" for name, value in chosen.items())]
        try:
            prepared = prepare(_config(search.what, changes))
        except UserError as error:  # others may do well
            study.set_user_attr(f"{REFUSED}-{trial.number}", error.message)
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            _tell(study, trial.number, search.on_trial)
            continue
        for note in prepared.notes:
            search.on_note(note)
        folder = search.folder / f"trial-{trial.number:03d}"
        yield Waiting(prepared, folder, _listener(optuna, study, trial, search.on_trial))


def _listener(
    optuna: ModuleType, study: Any, trial: Any, on_trial: Callable[[Trial], None] | None
) -> OnRound:
    """Tells the study how a trial does; one that does worse than most others did is left."""
    height = -math.inf  # the score, or minus the score where less is better

    def end(**how: Any) -> None:
        study.tell(trial, **how)
        _tell(study, trial.number, on_trial)

    def on_round(done: RoundDone) -> None:
        nonlocal height
        if "validation" in done.scores:
            height = done.metric.sign * done.scores["validation"]
            study.set_user_attr(KEY, done.metric.text())
            study.set_user_attr(f"{CLIENTS}-{trial.number}", done.counted.get("validation", 0))
            trial.report(height, done.round)
        if done.round == done.rounds:
            end(values=height)
        elif "validation" in done.scores and trial.should_prune():
            end(state=optuna.trial.TrialState.PRUNED)
            raise Left

    return on_round


def _tell(study: Any, number: int, on_trial: Callable[[Trial], None] | None) -> None:
    """A trial has ended."""
    if on_trial is not None:
        on_trial(next(own for own in _ended_trials(study) if own.number == number))


def _config(what: str, changes: Sequence[str]) -> Config:
    """The configuration of a trial: it is tried on validation data and on nothing else."""
    return read_config(what, [*changes, 'evaluation.parts=["validation"]'])


def _study(optuna: ModuleType, folder: Path, seed: int) -> Any:
    """What was found so far; a trial during which the search was killed is put first in
    the queue.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        storage=f"sqlite:///{(folder / STUDY).resolve()}",
        study_name=NAME,
        direction="maximize",
        load_if_exists=True,
    )
    running = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,))
    for trial in running:
        study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
        study.enqueue_trial(trial.params)
    study.sampler = optuna.samplers.TPESampler(seed=seed + len(study.trials))
    study.pruner = _pruner(optuna)
    return study


def _pruner(optuna: ModuleType) -> Any:
    return optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=1)


def _ended_trials(study: Any) -> list[Trial]:
    """Trials that count, refused ones too: the others were killed, and are done again."""
    ended = []
    known = study.user_attrs
    metric = MainMetric.read(known.get(KEY))
    for trial in study.get_trials(deepcopy=False):
        state = trial.state.name.lower()
        reason = known.get(f"{REFUSED}-{trial.number}", "")
        if state in ("complete", "pruned") or reason:
            reported = trial.intermediate_values  # by round
            last = reported[max(reported)] if reported else None
            height = trial.value if state == "complete" else last
            score = None if height is None else metric.sign * height
            options, clients = dict(trial.user_attrs), known.get(f"{CLIENTS}-{trial.number}", 0)
            ended.append(Trial(trial.number, state, score, options, metric, clients, reason))
    return ended


def _key(base: Config, space: Space) -> str:
    return sha256(json.dumps(_plan(base, space), sort_keys=True).encode()).hexdigest()[:8]


def _plan(base: Config, space: Space) -> Table:
    """All that decides a search; what is searched for has no value in it."""
    return {**base.resolved(), "tune": {name: repr(one) for name, one in space.items()}}


def _begin(folder: Path, base: Config, space: Space) -> None:
    text = tomli_w.dumps(_plan(base, space))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / PLAN).exists():
            if any(folder.iterdir()):
                raise RunFolderError(f"{folder} is not empty and not a search", OTHER_FOLDER)
            write_atomically(folder / PLAN, text)
        elif (folder / PLAN).read_text(encoding="utf-8") != text:
            raise RunFolderError(f"{folder} holds a search with other settings", OTHER_FOLDER)
        refuse_links(folder)
    except OSError as error:
        message = f"cannot write {folder}: {error.strerror or error}"
        raise RunFolderError(message, "choose another folder") from error


def _optuna() -> ModuleType:
    try:
        import optuna
    except ImportError as error:
        fix = 'pip install "fedblocks[tune]"'
        raise UserError("a search needs the package optuna", fix) from error
    package: ModuleType = optuna
    return package
