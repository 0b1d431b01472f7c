"""The JSON Schema of a configuration, for editors: every table, and every name with its
options, from the code.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin

from fedblocks.config.catalogue import first_line
from fedblocks.config.choices import WORDS, options
from fedblocks.config.model import Config
from fedblocks.config.options import options_of, plain
from fedblocks.config.registry import TABLES, kinds
from fedblocks.config.tracking import TRACKERS
from fedblocks.core.errors import UserError
from fedblocks.core.introspection import REQUIRED, Option
from fedblocks.core.options import Length, Limit

Schema = dict[str, Any]

_TYPES = {int: "integer", float: "number", bool: "boolean", str: "string"}


def config_schema() -> Schema:
    """Everything that may stand in a configuration file, as JSON Schema (draft 2020-12)."""
    schema = Config.model_json_schema()
    parts: dict[str, Schema] = schema["$defs"]
    for kind in ("method", "net"):
        schema["properties"][kind] = _named(kind)
    for kind in ("partition", "shift", "testbed"):
        about = parts["DataSection"]["properties"][kind].get("description", "")
        parts["DataSection"]["properties"][kind] = {**_named(kind), "description": about}
    about = parts["CohortSection"]["properties"]["sampler"].get("description", "")
    sampler = {**_named("sampler"), "description": about}
    parts["CohortSection"]["properties"]["sampler"] = sampler
    parts["DataSection"]["allOf"] = [
        _options_of_data(name) for name in kinds()["data"] if _is_there("data", name)
    ]
    # a group may leave out the name, and all that it has in common with the others
    for kind in ("method", "net"):
        parts["GroupSection"]["properties"][kind] = {
            "type": ["string", "object"],
            "description": f"its {kind}, where it differs",
        }
    parts["GroupSection"].pop("required", None)
    schema["properties"] |= {"track": _track(), "compare": _compare()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "fedblocks configuration",
    }


def _named(kind: str) -> Schema:
    """A name, or a table with a name and options."""
    known = kinds()[kind]
    tables = [
        _table(name, known[name], options(kind, name)) for name in known if _is_there(kind, name)
    ]
    return {"description": f"a {WORDS[kind]}", "anyOf": [{"enum": list(known)}, *tables]}


def _is_there(kind: str, name: str) -> bool:
    """Whether it can be imported; what an installed package adds may be broken."""
    try:
        options(kind, name)
    except UserError:
        return False
    return True


def _table(name: str, target: Callable[..., Any], known: Mapping[str, Option]) -> Schema:
    return {
        "type": "object",
        "title": name,
        "description": first_line(target),
        "properties": {
            "name": {"const": name},
            **{key: _option(option) for key, option in known.items()},
        },
        "required": ["name", *(key for key, option in known.items() if option.default is REQUIRED)],
        "additionalProperties": False,
    }


def _option(option: Option) -> Schema:
    kind = _type(option.kind, option.limits, option.length)
    schema = {**kind, "description": option.about} if option.about else kind
    has_default = option.default is not REQUIRED and option.default is not None
    return {**schema, "default": plain(option.default)} if has_default else schema


def _type(kind: Any, limits: Sequence[Limit], length: Length | None) -> Schema:
    """A type as JSON has it; what is not plain is left open, and the program itself
    says what it takes.
    """
    if kind in (int, float):
        return {"type": _TYPES[kind], **{limit.keyword: limit.bound for limit in limits}}
    if kind in _TYPES:
        return {"type": _TYPES[kind]}
    if kind in TABLES:
        options = {name: options_of(target) for name, target in TABLES[kind].items()}
        words = [
            name
            for name, own in options.items()
            if all(option.default is not REQUIRED for option in own.values())
        ]
        tables = [_table(name, TABLES[kind][name], own) for name, own in options.items()]
        return {"anyOf": [*([{"enum": words}] if words else []), *tables]}
    inner = [one for one in get_args(kind) if one not in (Ellipsis, type(None))]
    if get_origin(kind) in (Union, types.UnionType):
        schemas = [_type(one, limits, length) for one in inner]
        return schemas[0] if len(schemas) == 1 else {} if {} in schemas else {"anyOf": schemas}
    if get_origin(kind) is Literal:
        return {"enum": inner}
    if get_origin(kind) in (tuple, list, Sequence) and inner:
        of_many = get_origin(kind) is not tuple or Ellipsis in get_args(kind)
        size = _size(length) if of_many else {"minItems": len(inner), "maxItems": len(inner)}
        return {"type": "array", "items": _type(inner[0], limits, None), **size}
    return {}


def _size(length: Length | None) -> Schema:
    if length is None:
        return {}
    most = {} if length.most is None else {"maxItems": length.most}
    return {"minItems": length.least, **most}


def _options_of_data(name: str) -> Schema:
    """What data.options may hold if data.name is this one."""
    table = _table(name, kinds()["data"][name], options("data", name))
    del table["properties"]["name"]
    table["required"] = [key for key in table["required"] if key != "name"]
    needs = {"required": ["options"]} if table["required"] else {}
    return {
        "if": {"properties": {"name": {"const": name}}, "required": ["name"]},
        "then": {"properties": {"options": table}, **needs},
    }


def _track() -> Schema:
    to = {
        "type": "array",
        "items": {"enum": list(TRACKERS)},
        "description": "tools that mirror the run",
    }
    about = "mirrors of the run; they have no part in its result"
    return {
        "type": "object",
        "description": about,
        "properties": {"to": to},
        "additionalProperties": False,
    }


def _compare() -> Schema:
    names = list(kinds()["method"])
    methods = {
        "type": "array",
        "items": {"enum": names},
        "description": "methods besides the baselines",
    }
    seeds = {"type": "integer", "minimum": 1, "description": "runs of each method"}
    own = {name: {"type": "object", "description": f"options of {name}"} for name in names}
    about = "what `fedblocks compare` runs"
    return {
        "type": "object",
        "description": about,
        "properties": {"methods": methods, "seeds": seeds, **own},
    }
