"""The options of methods, nets, partitions, ... as a configuration has them: plain
values, checked and completed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any, get_args

from fedblocks.config.problems import Path, Problem
from fedblocks.config.registry import TABLES
from fedblocks.core import introspection
from fedblocks.core.checks import OptionError
from fedblocks.core.errors import nearest
from fedblocks.core.introspection import REQUIRED, Option
from fedblocks.core.option_names import hint_for
from fedblocks.core.option_types import members, show

Table = dict[str, Any]  # plain values, as TOML has them


def options_of(target: Callable[..., Any], filled_in: Collection[str] = ()) -> dict[str, Option]:
    """The options of something that can be named, but for those that a run fills in itself."""
    return {
        name: option
        for name, option in introspection.options_of(target).items()
        if name not in filled_in
    }


def tables_of(option: Option) -> Mapping[str, Callable[..., Any]]:
    """What a table `{name = ...}` may name here: schedules or optimizers."""
    return next((TABLES[kind] for kind in members(option.kind) if kind in TABLES), {})


def complete(
    options: Mapping[str, Option], values: Table, path: Path, whose: str, problems: list[Problem]
) -> Table:
    """The given values, checked, and defaults for all others; what is wrong goes to `problems`."""
    for name in values.keys() - options.keys():
        hint = hint_for(name, options, whose)
        problems.append(Problem((*path, name), f"{whose} has no such option", hint))
    completed: Table = {}
    for name, option in options.items():
        if name in values:
            completed[name] = _check(option, values[name], (*path, name), problems)
        elif option.default is REQUIRED:
            problems.append(
                Problem((*path, name), f"{whose} needs it", f"set it to {option.words}")
            )
        elif option.default is not None:
            completed[name] = plain(option.default)
    return completed


def construct(options: Mapping[str, Option], values: Table) -> dict[str, Any]:
    """Plain values as the arguments that the code wants: tuples, schedules, optimizers."""
    return {name: _construct(options[name], value) for name, value in values.items()}


def plain(value: Any) -> Any:
    """A default as TOML has it."""
    for registry in TABLES.values():
        for name, kind in registry.items():
            if type(value) is kind:
                values = dataclasses.asdict(value).items()
                return {"name": name, **{k: plain(v) for k, v in values if v is not None}}
    return [plain(v) for v in value] if isinstance(value, list | tuple) else value


def _item_of(option: Option) -> Option | None:
    """One thing of a list whose things are tables; none: it is no such list."""
    kinds = [inner for one in members(option.kind) for inner in get_args(one) if inner in TABLES]
    return dataclasses.replace(option, kind=kinds[0]) if kinds else None


def _construct(option: Option, value: Any) -> Any:
    if isinstance(value, list) and (item := _item_of(option)) is not None:
        return tuple(_construct(item, one) for one in value)
    if isinstance(value, dict) and tables_of(option):
        kind = tables_of(option)[value["name"]]
        return kind(**construct(options_of(kind), {k: v for k, v in value.items() if k != "name"}))
    return tuple(value) if isinstance(value, list) else value


def _check(option: Option, value: Any, path: Path, problems: list[Problem]) -> Any:
    if isinstance(value, list) and (item := _item_of(option)) is not None:
        tables = [{"name": one} if isinstance(one, str) else one for one in value]
        return [_check(item, one, path, problems) for one in tables]
    if isinstance(value, str) and value in tables_of(option):
        value = {"name": value}
    if isinstance(value, dict) and tables_of(option):
        return _check_table(option, value, path, problems)
    if wrong := option.wrong(value):
        why, fix = wrong
        table = next((f'; a table is {{name = "{name}", ...}}' for name in tables_of(option)), "")
        problems.append(Problem(path, why, fix + table, show(value)))
    return value


def _check_table(option: Option, value: Table, path: Path, problems: list[Problem]) -> Table:
    known = tables_of(option)
    if "name" not in value and isinstance(default := plain(option.default), dict):
        value = {**default, **value}  # a part of the default is said otherwise
    name = value.get("name")
    if not isinstance(name, str) or name not in known:
        message = "it is missing" if name is None else f"there is no {show(name)} here"
        problems.append(Problem((*path, "name"), message, nearest(str(name or ""), known)))
        return value
    rest = {k: v for k, v in value.items() if k != "name"}
    before = len(problems)
    whole = {"name": name, **complete(options_of(known[name]), rest, path, f'"{name}"', problems)}
    if len(problems) == before:
        problems += _of_the_whole(option, whole, path)
    return whole


def _of_the_whole(option: Option, table: Table, path: Path) -> list[Problem]:
    """What is wrong with a table whose values are right one by one."""
    try:
        wrong = option.wrong(_construct(option, table))
    except OptionError as error:
        return [Problem((*path, error.option), error.why, error.fix, show(table[error.option]))]
    return [Problem(path, *wrong)] if wrong else []
