"""Methods and data that were handed to a run as Python objects: how they are written
down, and what differs later.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedblocks.config.model import ALL, Config
from fedblocks.config.options import Table, plain
from fedblocks.config.registry import PYTHON
from fedblocks.core.errors import DataError, UserError, a_kind
from fedblocks.core.method import Method
from fedblocks.core.net import Net
from fedblocks.core.own_code import own_name, takes
from fedblocks.core.samplers import SAMPLERS, Sampler
from fedblocks.core.task import CLASSIFICATION, Task
from fedblocks.data.federation import Federation
from fedblocks.methods import METHODS

_HASH = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{52}\b")  # as files and arrays are recorded


@dataclass(frozen=True, eq=False)
class Ingredients:
    """A method for each group of clients, with its net, and the data."""

    methods: Mapping[str, Method]  # group -> method; a single one is that of all clients
    data: Federation
    data_hash: str  # computed once: large pools take a while
    sampler: Sampler | None = None  # of the clients of a round; None: as the configuration says

    @staticmethod
    def of(
        methods: Method | Mapping[str, Method], data: Federation, sampler: Sampler | None = None
    ) -> Ingredients:
        """Checked: a method, or one by group of clients, each with a net; and a federation."""
        by_group = Ingredients.of_methods(methods)
        if not isinstance(data, Federation):
            fix = "make one, for example with fedblocks.Federation.from_users(x, y, users)"
            raise DataError(f"data: {_kind(data)} is not a Federation", fix)
        return Ingredients(by_group, data, data.hash()).with_sampler(sampler)

    def with_sampler(self, sampler: Sampler | None) -> Ingredients:
        """The same, and who chooses the clients of a round."""
        if sampler is not None and (isinstance(sampler, type) or not callable(sampler)):
            fix = "give an object such as fedblocks.SizeSampler(), or a function of candidates"
            if isinstance(sampler, list | tuple):
                fix = "give fedblocks.TraceSampler(rounds=...) for a list of clients in each round"
            raise UserError(f"{_kind(sampler)} is not a sampler", fix)
        if sampler is not None and not takes(sampler, 1):
            message = f'the sampler "{own_name(sampler)}" is no function of one argument'
            raise UserError(message, "write def sampler(candidates): return candidates.ids[:2]")
        return dataclasses.replace(self, sampler=sampler)

    @staticmethod
    def of_methods(methods: Method | Mapping[str, Method]) -> dict[str, Method]:
        """Methods by group of clients, checked."""
        by_group: dict[str, Any] = (
            dict(methods) if isinstance(methods, Mapping) and methods else {ALL: methods}
        )
        for method in by_group.values():
            _check_method(method)
        return by_group

    def method_of(self, group: str) -> Method:
        """The method of a group; clients of no group have the first where none is for all."""
        return self.methods[group] if group in self.methods else next(iter(self.methods.values()))

    def data_table(self) -> Table:
        """The data as a configuration records them."""
        shape = list(self.data.x.shape[1:])
        return {
            "name": PYTHON,
            "clients": self.data.clients,
            "options": {"hash": self.data_hash, "input_shape": shape, "classes": self.data.classes},
        }


def task_table(task: Task) -> Table | None:
    """A task as a configuration records it; nothing where it is the usual one."""
    return None if task == CLASSIFICATION else task.table()


def sampler_table(sampler: Sampler) -> Table:
    """A sampler as a configuration records it: its name and its fields."""
    kind = type(sampler)
    listed = next((name for name, known in SAMPLERS.items() if known is kind), None)
    own_title = str(getattr(sampler, "__qualname__", kind.__qualname__))
    if own_title in SAMPLERS:  # a function that happens to be called like one of ours
        own_title = f"{own_title} (own)"
    record: Any = sampler
    own = dataclasses.fields(record) if dataclasses.is_dataclass(record) else ()
    values = {field.name: getattr(record, field.name) for field in own}
    fields = {name: as_plain(value) for name, value in values.items() if value is not None}
    return {"name": listed or own_title, **fields}


def _check_method(method: Any) -> None:
    if isinstance(method, type) and issubclass(method, Method):
        raise UserError(
            f"{method.__name__} is a class", f"make a method of it: {method.__name__}(net, lr=0.1)"
        )
    if not isinstance(method, Method):
        raise UserError(
            f"{_kind(method)} is not a method",
            "give a method such as fedblocks.FedAvg(net, lr=0.1)",
        )
    if not isinstance(method.net, Net):
        message = f"the net of {type(method).__name__} is {_kind(method.net)}, not a fedblocks.Net"
        raise UserError(message, "give fedblocks.Net.of(lambda: YourModule(), head=...)")


def _kind(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else a_kind(value)


def method_table(method: Method) -> Table:
    """A method as a configuration records it: its name and all options."""
    options = {
        name: as_plain(value) for name, value in method.options().items() if value is not None
    }
    return {"name": name_of(type(method)), **options}


def name_of(kind: type[Method]) -> str:
    """The name under which a method is listed, or that of its class."""
    return next((name for name, known in METHODS.items() if known is kind), kind.__name__)


def net_table(net: Net) -> Table:
    """A net as a configuration records it: its tensors, and where its head begins."""
    by_name = {**dict(net.template.named_parameters()), **dict(net.template.named_buffers())}
    tensors = [
        f"{name} {' x '.join(map(str, by_name[name].shape)) or 'one number'}" for name in net.names
    ]
    cuts = {name: list(piece.names) for name, piece in net.pieces.items()}
    table = {
        "name": PYTHON,
        "module": type(net.template).__name__,
        "head": net.head_module,
        "dtype": str(net.dtype).removeprefix("torch."),
        "tensors": tensors,
    }
    return {**table, "blocks": cuts} if cuts else table


def as_plain(value: Any) -> Any:
    """An option as TOML can hold it; what is no plain value is told by what identifies it."""
    value = plain(value)
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): as_plain(one) for key, one in value.items() if one is not None}
    if isinstance(value, list | tuple):
        return ["none" if one is None else as_plain(one) for one in value]
    if isinstance(value, Tensor | np.ndarray | np.generic):
        return _array(torch.as_tensor(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
        return {"name": type(value).__name__, **as_plain(fields)}
    return str(getattr(value, "__qualname__", type(value).__qualname__))


def _array(value: Tensor) -> Any:
    if value.dim() == 0:
        return value.item()
    raw = value.detach().cpu().contiguous().numpy().tobytes()
    return {"shape": list(value.shape), "sha256": sha256(raw).hexdigest()}


def check_same(config: Config, ingredients: Ingredients) -> None:
    """Refuse objects that are not those which a run was started with, and say what differs."""
    lines = list(differences(config, ingredients))
    if lines:
        kind = DataError if lines[0].startswith("data") else UserError
        fix = "give the method and the data that the run was started with, or start a new run"
        if kind is DataError and ingredients.data.about.get("name") == "csv":
            fix += '; before 2026-11, user ids of a table were words: from_csv(..., ids="words")'
        raise kind("these are not what the run was started with: " + "; ".join(lines), fix)


def differences(config: Config, ingredients: Ingredients) -> Iterator[str]:
    """What differs from what a configuration records: data, then methods and nets, each
    with its place.
    """
    tables = {"": (config.method.table, config.net.table)}
    tables |= {
        f"groups.{name}.": (group.method.table, group.net.table)
        for name, group in config.groups.items()
    }
    yield from _changes(
        "data.", {"hash": config.data.options.get("hash")}, {"hash": ingredients.data_hash}
    )
    before = config.task.table if config.task is not None else CLASSIFICATION.table()
    yield from _changes("task.", _said(before), _said(ingredients.data.task.table()))
    if ingredients.sampler is not None:
        choice = config.cohort.sampler
        before = {"name": "uniform"} if choice is None else choice.table
        yield from _changes("cohort.sampler.", before, sampler_table(ingredients.sampler))
    for place, (method, net) in tables.items():
        group = place.split(".")[1] if place else ALL
        if place and group not in ingredients.methods:
            yield f'there is no method for the group "{group}"'
            continue
        own = ingredients.method_of(group)
        yield from _changes(f"{place}method.", method, method_table(own))
        yield from _changes(f"{place}net.", net, net_table(own.net))


def _said(task: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in task.items() if value not in ([], 0.0)}


def _changes(place: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    if before.get("name") != now.get("name"):
        yield f"{place}name was {_show(before.get('name'))} and is {_show(now.get('name'))}"
        return
    for key in dict.fromkeys([*before, *now]):
        old, new = before.get(key), now.get(key)
        if old == new:
            continue
        if key == "tensors" and old is not None and new is not None:
            old, new = _only(old, new), _only(new, old)
        yield f"{place}{key} was {_show(old)} and is {_show(new)}"


def _only(tensors: Sequence[str], others: Sequence[str]) -> str:
    """The first few tensors that the others lack."""
    return ", ".join([t for t in tensors if t not in others][:3]) or "without them"


def _show(value: Any) -> str:
    text = "nothing" if value is None else _HASH.sub(r"SHA-256 \1...", str(value))
    return text if len(text) <= 200 else f"{text[:200]}..."
