"""Federations of some of the clients, or over some of the rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedblocks.core.client_names import client_numbers
from fedblocks.core.errors import DataError
from fedblocks.core.random import generator
from fedblocks.data.rows import Ints, renumber_parts, take_names

if TYPE_CHECKING:
    from fedblocks.data.federation import Federation


def take_clients(federation: Federation, clients: Iterable[Any]) -> Federation:
    """Only these clients, in this order, over the same pool."""
    chosen = np.asarray(client_numbers(clients, federation.names), dtype=np.int64)
    rows: dict[str, Any] = {part: rows.take(chosen) for part, rows in federation.parts.items()}
    tags = {name: tag[chosen] for name, tag in federation.tags.items()}
    return replace(federation, **rows, names=take_names(federation.names, chosen), tags=tags)


def hold_out(federation: Federation, fraction: float, seed: int) -> tuple[Federation, Federation]:
    """Clients that take part, and unseen ones."""
    unseen = round(fraction * federation.clients)
    if not 0 < unseen < federation.clients:
        message = f"holding out {fraction} of {federation.clients} clients"
        raise DataError(message, "leave at least one on each side")
    order = generator(seed, "hold_out").permutation(federation.clients)
    present, absent = np.sort(order[unseen:]), np.sort(order[:unseen])
    return take_clients(federation, present), take_clients(federation, absent)


def drop_unheld(federation: Federation) -> Federation:
    """The same clients over a pool without the rows that nobody holds."""
    held = np.concatenate([rows.index for rows in federation.parts.values()])
    used, parts = renumber_parts(federation.parts, held)
    rows: dict[str, Any] = dict(parts)
    return replace_rows(federation, used, rows)


def replace_rows(federation: Federation, used: Ints, parts: Mapping[str, Any]) -> Federation:
    """Other parts over a pool of its own, of these rows."""
    y = federation.y[torch.from_numpy(used).to(federation.device)]
    return replace(federation, x=federation.inputs(used), y=y, streamed=False, **parts)
