"""Which rows belong to which client, stored as two flat arrays so that a million
clients cost nothing extra.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from fedblocks.core.errors import DataError, count_of, printable

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


def read_only(values: npt.ArrayLike) -> Ints:
    """The values as int64 that nobody can write to, so that federations may share them."""
    view = np.asarray(values, dtype=np.int64).view()
    view.setflags(write=False)
    return view


def starts(sizes: npt.ArrayLike) -> Ints:
    """Where each client's stretch begins, and where the last one ends."""
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype(np.int64)  # [clients + 1]


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of every client, one client after the other."""

    index: Ints  # [rows held]
    offsets: Ints  # [clients + 1]: client c holds index[offsets[c]:offsets[c + 1]]

    def __post_init__(self) -> None:
        object.__setattr__(self, "index", read_only(self.index))
        object.__setattr__(self, "offsets", read_only(self.offsets))
        flat = self.index.ndim == 1 and self.offsets.ndim == 1 and len(self.offsets) > 0
        whole = flat and self.offsets[0] == 0 and self.offsets[-1] == len(self.index)
        if not whole or (self.sizes < 0).any():
            message = "offsets do not cut the row index into clients"
            raise DataError(message, "build rows with Rows.of([...])")

    @classmethod
    def of(cls, clients: Sequence[npt.ArrayLike]) -> Rows:
        """Rows from one list or array of row numbers per client."""
        arrays = [np.asarray(rows, dtype=np.int64).reshape(-1) for rows in clients]
        index = np.concatenate(arrays) if arrays else np.zeros(0, np.int64)
        return cls(index, starts([len(rows) for rows in arrays]))

    @classmethod
    def by_owner(cls, owner: npt.ArrayLike, clients: int) -> Rows:
        """Rows from the client that owns each row; -1 means that nobody does."""
        owners = np.asarray(owner, dtype=np.int64)
        order = np.argsort(owners, kind="stable")
        order = order[np.count_nonzero(owners < 0) :]
        return cls(order, starts(np.bincount(owners[order], minlength=clients)))

    @classmethod
    def none(cls, clients: int) -> Rows:
        """No rows for anybody."""
        return cls(np.zeros(0, np.int64), np.zeros(clients + 1, np.int64))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, client: int) -> Ints: ...
    @overload
    def __getitem__(self, client: slice) -> Rows: ...
    def __getitem__(self, client: Any) -> Any:
        if isinstance(client, slice):
            return self.take(range(len(self))[client])
        if not 0 <= client < len(self):
            raise IndexError(f"client {client} of {len(self)}")
        own = self.index[self.offsets[client] : self.offsets[client + 1]]
        return own.copy()  # torch warns when it is indexed by an array that cannot be written to

    def __iter__(self) -> Iterator[Ints]:
        return (self[client] for client in range(len(self)))

    @cached_property
    def longest(self) -> int:
        """The most rows that a client holds."""
        return int(self.sizes.max(initial=0))

    @property
    def sizes(self) -> Ints:
        """How many rows each client holds."""
        return np.diff(self.offsets)

    def sizes_of(self, clients: Sequence[int]) -> Ints:
        """How many rows each of these clients holds."""
        chosen = np.asarray(clients, dtype=np.int64)
        return self.offsets[chosen + 1] - self.offsets[chosen]

    @property
    def owners(self) -> Ints:
        """The client of each entry of `index`."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def take(self, clients: npt.ArrayLike) -> Rows:
        """The rows of these clients, in this order."""
        chosen = np.asarray(clients, dtype=np.int64)
        sizes = self.sizes[chosen]
        offsets = starts(sizes)
        shift = np.repeat(self.offsets[chosen] - offsets[:-1], sizes)
        return Rows(self.index[np.arange(offsets[-1]) + shift], offsets)

    def where(self, kept: Mask) -> Rows:
        """Only the entries of `index` that are kept."""
        return Rows(self.index[kept], starts(np.bincount(self.owners[kept], minlength=len(self))))

    def renumber(self, index: Ints) -> Rows:
        """The same clients and sizes with other row numbers."""
        return Rows(index, self.offsets)


@dataclass(frozen=True, eq=False)
class Numbered(Sequence[str]):
    """Client names such as `client-7`, made when asked for."""

    ids: Ints  # [clients]
    prefix: str = field(default="client-")

    @classmethod
    def up_to(cls, clients: int) -> Numbered:
        """client-0, client-1, ..."""
        return cls(np.arange(clients))

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> Numbered: ...
    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return Numbered(self.ids[at], self.prefix)
        return f"{self.prefix}{self.ids[at]}"

    def take(self, clients: Ints) -> Numbered:
        """The names of these clients."""
        return Numbered(self.ids[clients], self.prefix)


def renumber_parts(parts: Mapping[str, Rows], keys: Ints) -> tuple[Ints, dict[str, Rows]]:
    """The distinct keys of all rows held, part after part, and the parts as places among these."""
    distinct, places = np.unique(keys, return_inverse=True)
    ends = np.cumsum([len(rows.index) for rows in parts.values()])
    pieces = np.split(places, ends[:-1])
    return distinct, {
        part: rows.renumber(piece) for (part, rows), piece in zip(parts.items(), pieces)
    }


def take_names(names: Sequence[str], clients: Ints) -> Sequence[str]:
    """The names of these clients, still made when asked for if they were."""
    return names.take(clients) if isinstance(names, Numbered) else tuple(names[c] for c in clients)


def some_names(names: Sequence[str], clients: npt.ArrayLike, most: int = 5) -> str:
    """A short readable list of clients for messages."""
    chosen = np.asarray(clients, dtype=np.int64).tolist()
    shown = ", ".join(f'"{printable(names[c])}"' for c in chosen[:most])
    return shown + (f" and {len(chosen) - most} more" if len(chosen) > most else "")


def same_length(**rows: int) -> None:
    """Refuse inputs, labels and users of unlike length."""
    (first, expected), *others = rows.items()
    for name, count in others:
        if count != expected:
            raise DataError(
                f"{first} has {count_of(expected, 'row')} and {name} has {count}",
                f"give one of {name} for each row",
            )
