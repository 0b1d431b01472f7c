"""Runs whose clients may be compared by number: those on the same clients with the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from fedblocks.config.model import Config
from fedblocks.core.errors import DataError
from fedblocks.runs.storage.folder import RunFolder

FIX = "compare runs that were made with the same data, partition and shift"


class StoredRun(Protocol):
    """A run in its folder."""

    @property
    def folder(self) -> Path: ...

    @property
    def config(self) -> Config: ...


def check_same_data(runs: Sequence[StoredRun]) -> None:
    """All runs of a seed must have had the same clients with the same rows."""
    known: dict[int, tuple[str, StoredRun]] = {}
    for run in runs:
        data_hash = partition_hash(run)
        before = known.setdefault(run.config.seed, (data_hash, run))
        if before[0] != data_hash:
            both = f"{run.folder} and {before[1].folder}"
            raise DataError(f"{both} have the same seed but not the same data", FIX)


def check_reference(run: StoredRun, reference: StoredRun) -> None:
    """A client is compared with itself: the reference had the same clients with the same rows,
    whatever its seed. A record that does not say what its data were is taken as it is.
    """
    own, other = partition_hash(run), partition_hash(reference)
    if own and other and own != other:
        message = f"the reference {reference.folder} was not trained on the data of {run.folder}"
        raise DataError(f"{message}: its clients are others, or have other rows", FIX)


def partition_hash(run: StoredRun) -> str:
    """The SHA-256 of the federation that a run was trained on; empty where nobody knows."""
    with RunFolder.open(run.folder) as folder:
        return folder.store.meta("federation") or ""
