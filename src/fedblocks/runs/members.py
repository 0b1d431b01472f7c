"""Groups of clients: who is in which, and the checks of those that were handed to a run as Python
objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedblocks.config.code.ingredients import Ingredients
from fedblocks.config.model import ALL, ONE_GROUP
from fedblocks.config.options import Table
from fedblocks.core.client_names import client_numbers
from fedblocks.core.errors import DataError, UserError
from fedblocks.data.federation import Federation

# numbers or names of clients, or {"tag": ..., "value": ...}
Members = Sequence[int | str] | Mapping[str, Any]


def members_table(group: str, members: Members, data: Federation) -> Table:
    """The members of a group as a configuration records them."""
    if isinstance(members, Mapping):
        return dict(members)
    return {"clients": _numbers(group, members, data)}


def group_of_each(members: Mapping[str, Iterable[int]], names: Sequence[str]) -> list[str]:
    """The group of each client; a client in two groups is refused: it has one net and method."""
    groups = [ALL] * len(names)
    for name, clients in members.items():
        for client in clients:
            if groups[client] not in (ALL, name):
                first = groups[client]
                raise UserError(
                    f'client {client}, "{names[client]}", is in the groups "{first}" and "{name}"',
                    ONE_GROUP,
                )
            groups[client] = name
    return groups


def check_groups(ingredients: Ingredients, groups: Mapping[str, Members]) -> None:
    """Every group has a method, every method a group, and every client one of them."""
    named = [name for name in ingredients.methods if name != ALL]
    missing, spare = [n for n in groups if n not in named], [n for n in named if n not in groups]
    if missing:
        raise UserError(
            f'the group "{missing[0]}" has no method',
            f'write run({{"{missing[0]}": method, ...}}, ...)',
        )
    if spare:
        fix = f'write groups={{"{spare[0]}": [0, 1, ...]}}'
        raise UserError(f'which clients use the method "{spare[0]}"?', fix)
    data = ingredients.data
    lists = {name: m for name, m in groups.items() if not isinstance(m, Mapping)}
    listed = {client for name, m in lists.items() for client in _numbers(name, m, data)}
    alone = sorted(set(range(data.clients)) - listed)
    if ALL not in ingredients.methods and alone and len(lists) == len(groups):
        raise UserError(
            f'client {alone[0]}, "{data.names[alone[0]]}", is in no group',
            'give a method for all others: {"all": method, ...}',
        )


def _numbers(group: str, members: Iterable[Any], data: Federation) -> list[int]:
    place = f'groups["{group}"]'
    if isinstance(members, str) or not isinstance(members, Iterable):
        raise UserError(f"{place}: {members!r} is not a list of clients", f"write [{members!r}]")
    try:
        return client_numbers(members, data.names)
    except DataError as error:
        raise DataError(f"{place}: {error.message}", error.fix) from error
