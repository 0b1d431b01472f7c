"""What pydantic found wrong with a configuration, in plain words: the field, what is
wrong, what to write instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from fedblocks.config.choices import options
from fedblocks.config.problems import Path, Problem
from fedblocks.core.errors import nearest
from fedblocks.core.option_types import show
from fedblocks.methods import METHODS
from fedblocks.nets import NETS

Details = dict[str, Any]  # of one of pydantic's errors
Model = type[BaseModel]

_TYPES: dict[str, str] = {  # pydantic's name of an error -> what the value is not
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "dict_type": "a table",
    "tuple_type": "a list",
}
_LIMITS = {"ge": "is below", "gt": "is not above", "le": "is above", "lt": "is not below"}
_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
}


def problems_of(error: ValidationError, reported: set[Path], root: Model) -> list[Problem]:
    """A problem for each key that has none yet; `root` is the model of the whole configuration."""
    by_key: dict[Path, list[Details]] = {}
    for one in error.errors():
        path, details = _place(dict(one))
        if path not in reported:
            by_key.setdefault(path, []).append(details)
    return [_problem(path, group, root) for path, group in by_key.items()]


def _place(error: Details) -> tuple[Path, Details]:
    """The key of an error; our own checks say it themselves: "field: what is wrong"."""
    path = tuple(
        str(part) for part in error["loc"] if isinstance(part, str) and part not in ("int", "float")
    )
    if error["type"] != "value_error":
        return path, error
    name, _, message = str(error["msg"]).removeprefix("Value error, ").partition(": ")
    return (*path, name), {**error, "msg": message}


def _problem(path: Path, errors: list[Details], root: Model) -> Problem:
    fields = _model_at(path[:-1], root).model_fields
    kind = str(errors[0]["type"])
    value = errors[0].get("input")
    if kind in ("model_type", "model_attributes_type"):
        wrong = "it is missing" if value is None else f"{show(value)} is not a table"
        return Problem(path, wrong, f"write a table [{'.'.join(path)}]")
    if kind == "extra_forbidden":
        home = _belongs(path[-1], root, is_table=isinstance(value, dict))
        return Problem(path, "there is no such field", home or nearest(path[-1], fields))
    if path[-1] not in fields:
        return Problem(path, _wrong(errors), "see docs/configuration.md")
    field = fields[path[-1]]
    return Problem(path, _wrong(errors), _to_write(field.annotation, field.description or ""))


def _wrong(errors: list[Details]) -> str:
    """What is wrong with a value; a field of two types has an error for each."""
    first = errors[0]
    kind = str(first["type"])
    value = show(first.get("input"))
    limits = first.get("ctx", {})
    types = [_TYPES[one["type"]] for one in errors if one["type"] in _TYPES]
    if types:
        return f"{value} is not {' or '.join(dict.fromkeys(types))}"
    if kind == "missing":  # a list without its last values, or a whole field
        return "it is missing" if isinstance(first["loc"][-1], str) else f"{value} is too short"
    if kind in ("too_short", "too_long"):
        return f"{value} is too {kind.removeprefix('too_')}"
    if kind == "literal_error":
        return f"{value} is not one of {limits['expected']}"
    if kind == "string_pattern_mismatch":
        return f"{value} is not a {first['loc'][-1]}"
    for name, words in _LIMITS.items():
        if name in limits:
            return f"{value} {words} {limits[name]:g}"
    return str(first["msg"]) if kind == "value_error" else f"{value}: {first['msg']}"


def _to_write(annotation: Any, about: str) -> str:
    """What a field takes, e.g. `write a whole number (rounds of training, at least 1)`."""
    is_union = get_origin(annotation) is Union or isinstance(annotation, type(int | None))
    kinds = [
        kind
        for kind in (get_args(annotation) if is_union else (annotation,))
        if kind is not type(None)
    ]
    if get_origin(kinds[0]) is Literal or annotation is str:
        return f"write {about}"
    words = _WORDS.get(float if float in kinds else kinds[0])
    if words is None:
        words = "a list" if get_origin(kinds[0]) is tuple else "a table"
    return f"write {words}: {about}" if "(" in about else f"write {words} ({about})"


def _belongs(name: str, root: Model, is_table: bool) -> str:
    """Where a field of this name is at home, if it was only written in the wrong table."""
    models = {key: field.annotation for key, field in root.model_fields.items()}
    tables = [
        key
        for key, model in models.items()
        if name in getattr(model, "model_fields", {}) and name != "name"
    ]
    if not is_table:
        named: dict[str, Iterable[str]] = {"method": METHODS, "net": NETS}
        tables += [
            kind
            for kind, known in named.items()
            if any(name in options(kind, one) for one in known)
        ]
    places = [f"[{key}]" for key in tables]
    if name in root.model_fields:
        places.append("the top of the file, before all tables")
    on_the_line = f" (on the command line: --set {tables[0]}.{name}=...)" if tables else ""
    return f"it belongs to {' or '.join(places)}{on_the_line}" if places else ""


def _model_at(path: Path, root: Model) -> Model:
    """The model of the table at a path; tables with names of one's own, such as
    [groups.old], are all alike.
    """
    model: Any = root
    for part in path:
        field = model.model_fields.get(part)
        kinds = [field.annotation, *get_args(field.annotation)] if field is not None else [model]
        model = next((k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)), model)
    section: Model = model
    return section
