"""What there is to choose from, as plain values: methods with their options, data sets,
partitions, shifts, nets.
"""

from __future__ import annotations

import inspect
from typing import Any

from fedblocks.config.choices import another_net, any_net, options
from fedblocks.config.options import plain
from fedblocks.config.registry import BY_CODE, Methods, kinds, unlisted_method
from fedblocks.core.errors import UserError, nearest
from fedblocks.core.introspection import REQUIRED, Option
from fedblocks.core.method import Method
from fedblocks.data import DATASETS, DataSet
from fedblocks.data.sets import describe_sets

Entry = dict[str, Any]


def methods() -> list[Entry]:
    """Every method, with its paper and its options; one that cannot be imported says why."""
    return [_method(name) for name in Methods()]


def data() -> list[Entry]:
    """Data sets, with where their files are or would go, partitions, test-beds and shifts."""
    files = {entry.pop("name"): entry for entry in describe_sets()}
    ours = {name: known for name, known in DATASETS.items() if isinstance(known, DataSet)}
    kind = {name: known.kind for name, known in ours.items()}
    about = {name: known.about for name, known in ours.items()}
    entries: list[Entry] = []
    titles = {"data": "data set", "partition": "partition", "testbed": "test-bed", "shift": "shift"}
    for what, title in titles.items():
        for name in kinds()[what]:
            entries.append({"name": name, "what": title, **_about(what, name)})
            if what == "data":
                text = {"about": about[name]} if name in about else {}
                entries[-1] |= {**text, "inputs": kind.get(name, "any"), **files.get(name, {})}
    return entries


def _about(what: str, name: str) -> Entry:
    """One line and the options; of a package that cannot be imported, why."""
    try:
        return {"about": first_line(kinds()[what][name]), "options": describe_options(what, name)}
    except UserError as error:
        return {"about": error.message, "options": []}


def describe_options(kind: str, name: str) -> list[Entry]:
    """The options of one choice."""
    return [_option(option) for option in options(kind, name).values()]


def check_method_name(name: str) -> str:
    """The name, or the nearest ones that exist."""
    if name not in Methods():
        fix = unlisted_method(name) or f"{nearest(name, Methods())}; {BY_CODE}"
        raise UserError(f'there is no method "{name}"', fix)
    return name


def _method(name: str) -> Entry:
    try:
        kind = Methods()[name]
    except UserError as error:
        return {"name": name, "error": error.message}
    paper = getattr(kind, "paper", None)
    about = {
        key: getattr(paper, key, None) or None for key in ("title", "authors", "year", "venue")
    }
    entry = {"name": name, "about": first_line(kind), **about, "personal_by": kind.personal_by}
    return {**entry, "stateful": _stateful(kind), "options": describe_options("method", name)}


def _stateful(kind: type[Method]) -> bool | None:
    """Whether clients keep something between rounds; unknown where a method needs a net
    of its own.
    """
    try:
        method = kind(net=any_net())
        return (kind(net=another_net()) if method.degenerate() else method).stateful
    except Exception:  # whatever other people's code does
        return None


def _option(option: Option) -> Entry:
    required = option.default is REQUIRED
    default = None if required else plain(option.default)
    return {
        "name": option.name,
        "type": option.words,
        "choices": list(option.choices) or None,
        "default": default,
        "required": required,
        "about": option.about,
    }


def first_line(target: object) -> str:
    """The first paragraph of what is said of something, as one line."""
    return " ".join((inspect.getdoc(target) or "").partition("\n\n")[0].split())
