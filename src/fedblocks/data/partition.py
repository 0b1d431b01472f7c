"""A partition: which rows of a pool each client gets, and how that was decided."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedblocks.core.errors import DataError
from fedblocks.data.array_kinds import as_numpy, refuse_wide
from fedblocks.data.rows import Floats, Ints, Numbered, Rows, starts, take_names
from fedblocks.data.spellings import MOST_DIGITS
from fedblocks.data.storage import content_hash, read_npz, told_as_damage, verify, write_npz
from fedblocks.data.summary import IGNORE, labels_held

Labels = npt.ArrayLike | torch.Tensor


@dataclass(frozen=True, eq=False)
class Partition:
    """The rows of every client, with the recipe that made them."""

    rows: Rows
    recipe: dict[str, Any]  # plain JSON values: the function's name and its arguments
    names: Sequence[str] = ()  # default client-0, client-1, ...

    def __post_init__(self) -> None:
        if not len(self.names):
            object.__setattr__(self, "names", Numbered.up_to(len(self.rows)))
        if len(self.names) != len(self.rows):
            raise DataError(
                f"{len(self.names)} names for {len(self.rows)} clients", "give one name per client"
            )

    def __len__(self) -> int:
        return len(self.rows)

    def hash(self) -> str:
        """SHA-256 of who holds which rows."""
        return content_hash(index=self.rows.index, offsets=self.rows.offsets)

    def without_empty(self) -> Partition:
        """Only the clients that hold rows, under the names they had."""
        kept = np.flatnonzero(self.rows.sizes)
        recipe = {**self.recipe, "without_empty": True}
        return Partition(self.rows.take(kept), recipe, take_names(self.names, kept))

    def preview(self, labels: Labels) -> list[dict[str, Any]]:
        """One line per client: rows, classes held, share of the most frequent label."""
        held = labels_held(self.rows, as_labels(labels))
        columns = zip(
            self.names, self.rows.sizes.tolist(), held.classes.tolist(), held.top_share.tolist()
        )
        return [
            {"client": n, "rows": r, "classes": c, "top_share": round(t, 4)}
            for n, r, c, t in columns
        ]

    def save(self, path: str | Path) -> None:
        """One npz file: row numbers, and a JSON header with the recipe."""
        header = {"recipe": self.recipe, "hash": self.hash(), **names_header(self.names)}
        arrays = {
            "index": self.rows.index,
            "offsets": self.rows.offsets,
            **names_arrays(self.names),
        }
        write_npz(path, "Partition", header, arrays)

    @classmethod
    def load(cls, path: str | Path) -> Partition:
        """Read a saved partition; a damaged file is refused."""
        with told_as_damage(path, "Partition"):
            header, arrays = read_npz(path, "Partition")
            names = names_from(header, arrays)
            partition = cls(Rows(arrays["index"], arrays["offsets"]), header["recipe"], names)
            verify(path, header, partition.hash())
        return partition


PartitionFunction = Callable[..., Partition]


def partition_from_lists(clients: Any) -> Partition:
    """A partition from the row numbers of each client: a list of lists or arrays, or a
    mapping by name.
    """
    names = tuple(map(str, clients)) if isinstance(clients, Mapping) else ()
    rows = list(clients.values()) if isinstance(clients, Mapping) else clients
    fix = (
        "give a Partition, a function of the labels that makes one, or a list with the row "
        "numbers of each client"
    )
    if not isinstance(rows, list | tuple | np.ndarray) or not len(rows):
        raise DataError(
            f"the partition is a {type(clients).__name__}" + (", empty" if rows == [] else ""), fix
        )
    for number, own in enumerate(rows):
        array = np.asarray(own if not isinstance(own, torch.Tensor) else own.cpu())
        if array.ndim != 1 or (len(array) and not np.issubdtype(array.dtype, np.integer)):
            raise DataError(
                f"client {number} of the partition is not a list of row numbers: {str(own)[:60]}",
                fix,
            )
        if len(array) and array.min() < 0:
            raise DataError(
                f"client {number} of the partition has row {array.min()}", "count rows from 0"
            )
    arrays = [np.asarray(own, dtype=np.int64) for own in rows]
    return Partition(Rows.of(arrays), {"partition": "listed", "clients": len(arrays)}, names)


def names_header(names: Sequence[str]) -> dict[str, Any]:
    """What the JSON header says about client names."""
    return {"prefix": names.prefix} if isinstance(names, Numbered) else {"names": list(names)}


def names_arrays(names: Sequence[str]) -> dict[str, Ints]:
    """Numbers of numbered names, which a header of a million strings would make slow."""
    return {"name_ids": names.ids} if isinstance(names, Numbered) else {}


def names_from(header: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> Sequence[str]:
    """Client names as they were saved."""
    if "prefix" in header:
        return Numbered(arrays["name_ids"], header["prefix"])
    return tuple(header["names"])


def as_labels(labels: Labels) -> Ints:
    """Labels as whole numbers in numpy, of any shape."""
    if isinstance(labels, torch.Tensor):
        labels = as_numpy(labels)
    array = np.asarray(labels)
    if array.dtype == object and any(label is None for label in array.flat):
        what = "there are no labels: y is None" if labels is None else "a label is None"
        raise DataError(what, "give a class for each row; one that is not known is -100")
    if array.dtype.kind not in "iubf":
        what = "text" if array.dtype.kind in "US" else f"of type {array.dtype}"
        fix = "number the classes: classes, y = np.unique(y, return_inverse=True)"
        raise DataError(f"labels are {what}, not whole numbers", fix)
    refuse_wide(array, "y")
    whole = np.isfinite(array) & (array == np.floor(array))
    if not whole.all():
        odd = array[~whole].flat[0]
        fix = (
            'number the classes 0, 1, 2, ...; for targets that are numbers, task=Task("regression")'
        )
        if np.isnan(odd):
            fix = f"give {IGNORE} for a class that is not known; {fix}"
        raise DataError(f"labels are not whole numbers: one is {odd}", fix)
    return array.astype(np.int64, copy=False)


def refuse_large_labels(labels: Ints) -> None:
    """Refuse labels that are no numbers of classes, as tables do: there would be a class for each
    number up to them.
    """
    if labels.size and labels.max() >= 10**MOST_DIGITS:
        row = int(np.argwhere(labels == labels.max())[0][0])
        message = f"the label {labels.max()} of row {row} is too large for the number of a class"
        fix = "number the classes from 0: classes, y = np.unique(y, return_inverse=True)"
        raise DataError(message, fix)


def count_rows(labels: Labels) -> int:
    """How many rows there are, for partitions that ask for no labels: classes, numbers, words."""
    try:
        return len(labels)  # type: ignore[arg-type]
    except TypeError:
        what = "there are no labels: y is None" if labels is None else f"labels are {labels!r:.60}"
        raise DataError(what, "give a target for each row") from None


def one_label_per_row(labels: Labels) -> Ints:
    """Labels of a partition by label: one per row, none below 0."""
    _refuse_fractions(labels)
    array = as_labels(labels)
    if array.ndim != 1:
        fix = "use iid or by_user, or give one label (topic, language, ...) per row"
        raise DataError(
            f"a partition by label needs one label per row, not shape {list(array.shape)}", fix
        )
    if not len(array) or array.min() < 0:
        raise DataError(
            "there are no rows" if not len(array) else f"the label {array.min()} is below 0",
            "give at least one row, and labels 0, 1, 2, ...",
        )
    return array


def _refuse_fractions(labels: Labels) -> None:
    """Refuse numbers that are no classes, whatever the task says of them."""
    values = as_numpy(labels) if isinstance(labels, torch.Tensor) else np.asarray(labels)
    odd = values[values != np.floor(values)] if values.dtype.kind == "f" else values[:0]
    if odd.size:
        fix = (
            "use iid, quantity or by_user, which need no classes, or give one label (topic, "
            "region, ...) per row"
        )
        message = f"labels are not whole numbers: one is {odd.flat[0]}"
        raise DataError(f"{message}, and a partition by label needs classes", fix)


def positive(**values: float) -> None:
    """Refuse arguments that must be above 0."""
    for name, value in values.items():
        if not value > 0:
            raise DataError(f"{name} is {value}", f"{name} must be above 0")


def rows_of_classes(labels: Ints, rng: np.random.Generator) -> list[Ints]:
    """The rows of each class, in random order."""
    shuffled = rng.permutation(len(labels))
    return [shuffled[rows] for rows in Rows.by_owner(labels[shuffled], int(labels.max()) + 1)]


def cut(shares: Floats, rows: int) -> Ints:
    """How many of `rows` each client gets: cuts at the cumulative shares, which sum to
    at most 1.
    """
    total = np.cumsum(shares)
    # all rows are given away, whatever the rounding of a million shares
    if abs(total[-1] - 1) < 1e-9:
        total = total / total[-1]
    edges = np.floor(total * rows + 1e-9).astype(np.int64)  # where each client's stretch ends
    edges[1:] -= edges[:-1]  # numpy takes what was there before
    return edges


def cut_all(shares: Floats, sizes: Sequence[int]) -> Ints:
    """Whole rows by shares [classes, clients], cut where published test-beds cut: all
    classes round alike.
    """
    return np.stack([cut(share, rows) for share, rows in zip(shares, sizes)])


def share_out(shares: Floats, rows: int, owed: Floats) -> tuple[Ints, Floats]:
    """How many of `rows` each client gets, by shares that sum to 1, and what rounding then owes
    each.

    `owed` is what rounding took from each client in the classes before: the rows that remain go to
    those with most.
    """
    exact = shares * rows
    counts = np.floor(exact).astype(np.int64)
    owed = owed + exact - counts
    left = rows - int(counts.sum())
    first = np.argsort(-np.where(shares > 0, owed, -np.inf), kind="stable")[:left]
    counts[first] += 1
    owed[first] -= 1
    return counts, owed


def deal(classes: Sequence[Ints], counts: Ints) -> Rows:
    """Give client c the next counts[k, c] rows of each class k; counts is [classes, clients]."""
    clients = counts.shape[1]
    pieces = [rows[: taken.sum()] for rows, taken in zip(classes, counts)]
    owners = [np.repeat(np.arange(clients), taken) for taken in counts]
    index, owner = np.concatenate(pieces), np.concatenate(owners)
    order = np.argsort(owner, kind="stable")
    return Rows(index[order], starts(np.bincount(owner, minlength=clients)))
