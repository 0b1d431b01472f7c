"""Clients as people name them: by number, counted from 0, or by name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from operator import index
from typing import Any

from fedblocks.core.errors import DataError, a_kind, alike, count_of

LOOKED_AT = 1_000  # names that a wrong one is compared with


def client_number(client: Any, names: Sequence[str]) -> int:
    """The number of a client: a whole number is one already, a text is a name, or a number where
    no client is called so.
    """
    return client_numbers([client], names)[0]


def client_numbers(clients: Iterable[Any], names: Sequence[str]) -> list[int]:
    """The numbers of some clients."""
    listed = list(clients)
    has_texts = any(isinstance(client, str) for client in listed)
    by_name = {name: number for number, name in enumerate(names)} if has_texts else {}
    return [_number(client, by_name, names) for client in listed]


def _number(client: Any, by_name: dict[str, int], names: Sequence[str]) -> int:
    if isinstance(client, str):
        if client in by_name:
            return by_name[client]
        is_number = client.isascii() and client.isdigit() and len(client) <= 18
        number = int(client) if is_number else len(names)
    else:
        number = _whole(client, names)
    if 0 <= number < len(names):
        return number
    shown = f'"{client[:40]}"' if isinstance(client, str) else client
    have = count_of(len(names), "client")
    raise DataError(f"there is no client {shown} among {have}", _instead_of(client, names))


def _whole(client: Any, names: Sequence[str]) -> int:
    try:
        if not isinstance(client, bool):
            return index(client)
    except TypeError:
        pass
    shown = f"{str(client)[:40]}, {a_kind(client)},"
    raise DataError(f"{shown} is neither the number nor the name of a client", _choice(names))


def _instead_of(client: Any, names: Sequence[str]) -> str:
    close = alike(str(client), list(islice(names, LOOKED_AT))) if isinstance(client, str) else []
    meant = " or ".join(f'"{name}"' for name in close)
    return f"did you mean {meant}? Or {_choice(names)}" if meant else _choice(names)


def _choice(names: Sequence[str]) -> str:
    example = f' or a name such as "{names[0]}"' if len(names) else ""
    return f"give a number from 0 to {len(names) - 1}{example}"
