"""The options of methods, nets, partitions, ...: found by looking at the code, so that a new one needs no more."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from fedblocks.core.errors import nearest
from fedblocks.runs.problems import Path, Problem
from fedblocks.runs.registry import TABLES

REQUIRED = inspect.Parameter.empty
Table = dict[str, Any]  # plain values, as TOML has them

_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "nothing"}
_PLURALS = {int: "whole numbers", float: "numbers", bool: "true or false", str: "texts", type(None): "nothing"}
# What a number must be, by its name or by the name's last word.
_RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    "lr": (lambda v: v > 0, "above 0"),
    "epochs": (lambda v: v >= 1, "at least 1"),
    "_epochs": (lambda v: v >= 0, "at least 0"),
    "batch_size": (lambda v: v >= 1, "at least 1"),
    "momentum": (lambda v: 0 <= v < 1, "at least 0 and below 1"),
    "betas": (lambda v: 0 <= v < 1, "at least 0 and below 1"),
    "weight_decay": (lambda v: v >= 0, "at least 0"),
    "eps": (lambda v: v > 0, "above 0"),
    "start": (lambda v: v > 0, "above 0"),
    "end": (lambda v: v > 0, "above 0"),
    "factor": (lambda v: v > 0, "above 0"),
    "rounds": (lambda v: v >= 1, "at least 1"),
}

_SYNONYMS = {  # what other libraries call an option
    "learning_rate": "lr",
    "local_learning_rate": "lr",
    "local_lr": "lr",
    "local_epochs": "epochs",
    "local_epoch": "epochs",
    "batch": "batch_size",
    "local_batch_size": "batch_size",
    "mu": "strength",
    "lamda": "strength",
}


@dataclass(frozen=True)
class Option:
    """One thing that can be chosen."""

    name: str
    kind: Any  # its type
    default: Any  # a plain value; None: nothing; REQUIRED: there is none
    about: str  # the comment beside it in the code

    @property
    def tables(self) -> Mapping[str, Callable[..., Any]]:
        """What a table `{name = ...}` may name here: schedules or optimizers."""
        return next((TABLES[t] for t in _members(self.kind) if t in TABLES), {})

    @property
    def words(self) -> str:
        """The type for people."""
        plain = [_in_words(t) for t in _members(self.kind) if t not in TABLES and t is not type(None)]
        named = [f'a table {{name = "{next(iter(self.tables))}", ...}}'] if self.tables else []
        return " or ".join(dict.fromkeys([*plain, *named]))


def options_of(target: Callable[..., Any], given: Sequence[str] | set[str] = ()) -> dict[str, Option]:
    """The fields of a dataclass, or the parameters of a function, but for those that a run gives itself."""
    hints, comments = get_type_hints(target), _comments(target)
    found = _fields(target) if dataclasses.is_dataclass(target) else _parameters(target)
    return {
        name: Option(name, hints.get(name, Any), default, comments.get(name, ""))
        for name, default in found.items()
        if name not in given
    }


def complete(options: Mapping[str, Option], given: Table, path: Path, whose: str, problems: list[Problem]) -> Table:
    """The given values, checked, and defaults for all others; what is wrong goes to `problems`."""
    for name in given.keys() - options.keys():
        elsewhere = _SYNONYMS.get(name)
        hint = nearest(name, options) if options else f"leave it out: {whose} has no options"
        hint = f'here it is called "{elsewhere}"' if elsewhere in options else hint
        problems.append(Problem((*path, name), f"{whose} has no such option", hint))
    found: Table = {}
    for name, option in options.items():
        if name in given:
            found[name] = _checked(option, given[name], (*path, name), problems)
        elif option.default is REQUIRED:
            problems.append(Problem((*path, name), f"{whose} needs it", f"set it to {option.words}"))
        elif option.default is not None:
            found[name] = plain(option.default)
    return found


def construct(options: Mapping[str, Option], values: Table) -> dict[str, Any]:
    """Plain values as the arguments that the code wants: tuples, schedules, optimizers."""
    return {name: _constructed(options[name], value) for name, value in values.items()}


def plain(value: Any) -> Any:
    """A default as TOML has it."""
    for registry in TABLES.values():
        for name, kind in registry.items():
            if type(value) is kind:
                return {"name": name, **{k: plain(v) for k, v in dataclasses.asdict(value).items()}}
    return [plain(v) for v in value] if isinstance(value, list | tuple) else value


def _constructed(option: Option, value: Any) -> Any:
    if isinstance(value, dict) and option.tables:
        kind = option.tables[value["name"]]
        return kind(**construct(options_of(kind), {k: v for k, v in value.items() if k != "name"}))
    return tuple(value) if isinstance(value, list) else value


def _checked(option: Option, value: Any, path: Path, problems: list[Problem]) -> Any:
    if isinstance(value, dict) and option.tables:
        return _checked_table(option, value, path, problems)
    if not _fits(option.kind, value):
        fix = f"give {option.words}" + (f" ({option.about})" if option.about else "")
        problems.append(Problem(path, f"{_shown(value)} is not {option.words}", fix))
    elif wrong := _out_of_range(option.name, value):
        problems.append(Problem(path, f"{_shown(value)} is out of range", f"it must be {wrong}"))
    return value


def _checked_table(option: Option, value: Table, path: Path, problems: list[Problem]) -> Table:
    name, known = value.get("name"), option.tables
    if not isinstance(name, str) or name not in known:
        message = "it is missing" if name is None else f"there is no {_shown(name)} here"
        problems.append(Problem((*path, "name"), message, nearest(str(name), known)))
        return value
    rest = {k: v for k, v in value.items() if k != "name"}
    return {"name": name, **complete(options_of(known[name]), rest, path, f'"{name}"', problems)}


def _fits(kind: Any, value: Any) -> bool:
    members = [t for t in _members(kind) if t not in TABLES]
    try:  # by way of JSON, where a list may become a tuple, but text never a number
        for member in members:
            if _accepts(member, json.dumps(value, default=str)):
                return True
    except (TypeError, ValueError):
        return False
    return False


def _accepts(kind: Any, text: str) -> bool:
    try:
        _adapter(kind).validate_json(text, strict=True)
    except ValidationError:
        return False
    return True


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(kind)
    except (PydanticSchemaGenerationError, PydanticUserError):
        return TypeAdapter(Any)  # arrays and the like: the function itself says what it takes


def _out_of_range(name: str, value: Any) -> str | None:
    values = value if isinstance(value, list) else [value]
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    if not all(math.isfinite(v) for v in numbers):
        return "finite"
    last = f"_{name.rpartition('_')[2]}"
    test, words = _RANGES.get(name) or _RANGES.get(last) or _RANGES.get(last[1:]) or (lambda v: True, "")
    return None if all(test(v) for v in numbers) else words


def _members(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _in_words(kind: Any) -> str:
    if kind in _WORDS:
        return _WORDS[kind]
    inner = [a for a in get_args(kind) if a is not Ellipsis]
    if not inner or inner[0] not in _WORDS:
        return "a value or a list"
    number = "" if Ellipsis in get_args(kind) or get_origin(kind) is not tuple else f"{len(inner)} "
    return f"a list of {number}{_PLURALS[inner[0]]}"


def _shown(value: Any) -> str:
    return json.dumps(value, default=str)


def _fields(target: Any) -> dict[str, Any]:
    return {f.name: _default_of(f) for f in dataclasses.fields(target)}


def _default_of(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return REQUIRED if field.default is dataclasses.MISSING else field.default


def _parameters(target: Callable[..., Any]) -> dict[str, Any]:
    variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return {p.name: p.default for p in inspect.signature(target).parameters.values() if p.kind not in variable}


@cache
def _comments(target: Callable[..., Any]) -> dict[str, str]:
    """The comment at the end of the line of each field or parameter, base classes first."""
    found: dict[str, str] = {}
    for part in reversed(target.__mro__) if isinstance(target, type) else (target,):
        try:
            lines = inspect.getsource(part).splitlines()
        except (OSError, TypeError):
            continue  # no source at hand, as for a class made in a notebook
        matches = [re.match(r"\s+(\w+): [^#]*#\s*(?!noqa|type:)(.+)", line) for line in lines]
        found |= {m[1]: m[2].strip() for m in matches if m}
    return found
