"""The way in from Python: run and resume what a configuration names, or methods and
data as objects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from fedblocks.config.code.ingredients import (
    Ingredients,
    method_table,
    net_table,
    sampler_table,
    task_table,
)
from fedblocks.config.code.loading import Recipe, hand_over
from fedblocks.config.model import ALL, Config
from fedblocks.config.options import Table
from fedblocks.config.presets import PRESETS
from fedblocks.config.sources import Source
from fedblocks.core.errors import UserError
from fedblocks.core.method import Method
from fedblocks.core.samplers import Sampler
from fedblocks.core.torch_modes import in_own_modes
from fedblocks.data.federation import Federation
from fedblocks.methods import METHODS
from fedblocks.runs import run as runs
from fedblocks.runs.begun import read_begun
from fedblocks.runs.evaluations import OnEvaluation
from fedblocks.runs.listeners import check_listeners
from fedblocks.runs.members import Members, check_groups, members_table
from fedblocks.runs.progress import OnNote, OnRound, RoundDone, print_too, warn_of
from fedblocks.runs.ranks.joining import is_first
from fedblocks.runs.refusals import tell_of_refusals
from fedblocks.runs.result import RunResult
from fedblocks.runs.settings import Settings, check_settings, plain_numbers, settings_table
from fedblocks.runs.trackers import Mirrors

Methods = Method | Mapping[str, Method]  # one, or one by group of clients


@in_own_modes
def run(
    what: Config | Methods,
    data: Federation | str | Path | None = None,
    rounds: int | None = None,
    out: str | Path | None = None,
    *,
    groups: Mapping[str, Members] | None = None,
    progress: bool = False,
    track: Sequence[str] = (),
    on_round: OnRound | None = None,
    on_note: OnNote | None = None,
    on_evaluation: OnEvaluation | None = None,
    **settings: Unpack[Settings],
) -> RunResult:
    """Train a method on data, or what a configuration describes, in a new folder (default:
    runs/METHOD-DATA-001).

    `run(FedPer(net, lr=0.1), data, rounds=20)` trains one method; `run({"all": a, "small": b},
    data, rounds=20, groups={"small": [0, 3]})` trains those clients with another method or net.
    `run(config, out)` takes everything from the configuration. `progress` prints a line a round.
    `track` names tools that mirror the run; `on_round`, `on_evaluation` and `on_note` are told
    what happens; without `on_note`, warnings become Python's.
    """
    check_listeners(on_round=on_round, on_note=on_note, on_evaluation=on_evaluation)
    on_round = print_too(on_round) if progress else on_round
    hand_over(lambda: _recipes(what, data, settings.get("sampler")))
    if isinstance(what, Config):
        data, out = (None, data) if isinstance(data, str | Path) else (data, out)
        _refuse_more(data=data, rounds=rounds, groups=groups, **settings)
        config = what
    else:
        ingredients = Ingredients.of(_methods(what), _federation(data))
        config = config_of_objects(ingredients, rounds, groups or {}, settings)
    if out is not None:
        path = Path(out)
    else:
        path = runs.free_folder(f"{config.method.name}-{config.data.name}")
    go = lambda listener: runs.run(config, path, listener, on_note or warn_of, on_evaluation)
    return run_mirrored(track, path, config, on_round, on_note, go)


@in_own_modes
def resume(
    path: str | Path,
    method: Methods | None = None,
    data: Federation | None = None,
    *,
    sampler: Sampler | None = None,
    rounds: int | str | None = None,
    progress: bool = False,
    track: Sequence[str] = (),
    on_round: OnRound | None = None,
    on_note: OnNote | None = None,
    on_evaluation: OnEvaluation | None = None,
) -> RunResult:
    """Go on with a run that was stopped, killed or failed; on the CPU it ends as if nothing had
    happened.

    A run that was started with a method and data needs the same again: other options, another net
    or other data are refused with what differs; so does a run with a sampler of your own. A run
    that was started from a configuration needs neither. `rounds="+20"` extends a run, also a
    finished one, or from where it was stopped early; `rounds=60` lets it have 60 in all.
    `progress` prints a line a round.
    """
    check_listeners(on_round=on_round, on_note=on_note, on_evaluation=on_evaluation)
    on_round = print_too(on_round) if progress else on_round
    if (method is None) != (data is None):
        raise UserError(
            "a method without data, or data without a method", "give both, as to `run`, or neither"
        )
    hand_over(lambda: _recipes(method, data, sampler))
    ingredients = None
    if method is not None:
        ingredients = Ingredients.of(_methods(method), _federation(data), sampler)
    tell = on_note or warn_of
    more = plain_numbers(rounds)

    def go(listener: OnRound | None) -> RunResult:
        return runs.resume(path, listener, tell, ingredients, on_evaluation, rounds=more)

    if not (track and is_first()):
        return tell_of_refusals(go(on_round), tell)
    return run_mirrored(track, Path(path), read_begun(path).config, on_round, on_note, go)


def config_of_objects(
    ingredients: Ingredients,
    rounds: int | None,
    groups: Mapping[str, Members],
    settings: Mapping[str, Any],
) -> Config:
    """The configuration that a run of objects is recorded with."""
    if rounds is None:
        raise UserError(
            "say how many rounds to train", "write for example run(method, data, rounds=20)"
        )
    check_settings(settings)
    check_groups(ingredients, groups)
    ingredients = ingredients.with_sampler(settings.get("sampler"))
    common = ingredients.method_of(ALL)
    table: Table = {
        "rounds": plain_numbers(rounds),
        "data": ingredients.data_table(),
        **_tables(common),
    }
    if task := task_table(ingredients.data.task):
        table["task"] = task
    table["groups"] = {
        name: {
            **members_table(name, members, ingredients.data),
            **_tables(ingredients.methods[name]),
        }
        for name, members in groups.items()
    }
    for key, value in settings_table(settings).items():
        table[key] = {**table.get(key, {}), **value} if isinstance(value, dict) else value
    if ingredients.sampler is not None:
        cohort = table.get("cohort", {})
        table["cohort"] = {**cohort, "sampler": sampler_table(ingredients.sampler)}
    return Config.stored(table, Source("fedblocks.run")).of_objects(ingredients)


def run_mirrored(
    track: Sequence[str],
    folder: Path,
    config: Config,
    on_round: OnRound | None,
    on_note: OnNote | None,
    go: Callable[[OnRound | None], RunResult],
) -> RunResult:
    """A run whose rounds other tools are told of, too."""
    tell = on_note or warn_of
    if not (track and is_first()):
        return tell_of_refusals(go(on_round), tell)
    with Mirrors(track, folder, config, tell) as mirrors:

        def tell_both(done: RoundDone) -> None:
            if on_round is not None:
                on_round(done)
            mirrors.on_round(done)

        return tell_of_refusals(go(tell_both), tell)


def _tables(method: Method) -> Table:
    return {"net": net_table(method.net), "method": method_table(method)}


def _refuse_more(**settings: Any) -> None:
    """A configuration says everything itself."""
    more = next((name for name, value in settings.items() if value is not None), None)
    if more is not None:
        fix = (
            "write `run(config, out=...)`, and change the configuration itself: "
            "read_config(name, ['rounds=20'])"
        )
        raise UserError(f"{more} beside a configuration, which says it already", fix)


def _methods(what: Any) -> Methods:
    if isinstance(what, str | Path):
        raise UserError(f"{str(what)!r} is a string, not a method", _instead_of(str(what)))
    methods: Methods = what
    return methods


def _instead_of(text: str) -> str:
    """What to write where the name of a method, a preset or a file was written."""
    if text.lower() in METHODS:
        return f"write {METHODS[text.lower()].__name__}(net, lr=0.1) for the method {text}"
    if text in PRESETS or Path(text).is_file():
        return f"read the configuration first: run(read_config({text!r}))"
    return "write run(FedAvg(net, lr=0.1), data, rounds=20), or run(read_config(PRESET_OR_FILE))"


def _federation(data: Any) -> Federation:
    if data is None:
        raise UserError(
            "a method needs data",
            "write run(method, data, rounds=20); Federation.from_users makes data",
        )
    federation: Federation = data
    return federation


def _recipes(
    what: Config | Methods | None,
    data: Federation | str | Path | None,
    sampler: Sampler | None = None,
) -> list[Recipe]:
    """For a command that reads the program: what the run uses, where it is made of objects."""
    if what is None or isinstance(what, Config):
        return []
    return [lambda seed: Ingredients.of(_methods(what), _federation(data), sampler)]
