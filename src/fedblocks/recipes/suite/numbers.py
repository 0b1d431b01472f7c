"""What a run of the suite leaves: how every client did, in a line of text that can be committed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from fedblocks.core.errors import UserError
from fedblocks.recipes.running.results import WARNING, Results
from fedblocks.runs.result import RunResult
from fedblocks.runs.storage.folder import RunFolder
from fedblocks.runs.storage.record import Part

Counts: TypeAlias = dict[int, tuple[float, float]]  # client -> right answers, of how many
ROUNDING = 1e-3  # percent; means are stored with four digits


def client_counts(run: RunResult, part: Part, view: str = "personal") -> dict[str, Any]:
    """Percent, the mean over clients in the last evaluation; for tests also the right answers of
    every client, those of new clients, and the bytes that were sent in all.
    """
    numbers: dict[str, Any] = {"value": 100 * (run.summary(part, view)["mean"] or 0.0)}
    if part != "test":
        return numbers
    with RunFolder.open(run.folder) as folder:
        last = run.last.round if run.last is not None else 0
        numbers["test"] = write_counts(folder.store.metrics(part, view, last))
        numbers["new"] = write_counts(folder.store.metrics("unseen", view, last))
    return {**numbers, "bytes": run.bytes_down + run.bytes_up}


def write_counts(rows: Sequence[Mapping[str, Any]]) -> str:
    """Right answers by client: "0:12/15 3:9/14"; clients without examples are left out."""
    return " ".join(
        f"{row['client']}:{row['correct']:g}/{row['examples']:g}" for row in rows if row["examples"]
    )


def read_counts(text: str) -> Counts:
    """The same as numbers."""
    counts: Counts = {}
    for word in text.split():
        client, _, share = word.partition(":")
        right, _, labels = share.partition("/")
        counts[int(client)] = (float(right), float(labels))
    return counts


def check_counts(results: Results) -> None:
    """Refuse numbers that somebody has changed: right answers of each client and their mean must
    agree.
    """
    for key, entry in results.cells.items():
        for seed, number in entry["seeds"].items():
            if not _agree(number):
                what = "its counts of right answers are odd, or other than its mean"
                message = f"{results.path} is not a file of results: {key}, seed {seed}: {what}"
                raise UserError(message, "move it away, and run the suite again")


def _agree(number: Mapping[str, Any]) -> bool:
    """Whether a number is the mean of its counts, which are whole."""
    try:
        test, new = read_counts(number["test"]), read_counts(number["new"])
        shares = [right / labels for right, labels in (*test.values(), *new.values())]
        mean = 100 * math.fsum(shares[: len(test)]) / len(test)
    except (KeyError, ValueError, ZeroDivisionError):
        return False
    return all(0 <= share <= 1 for share in shares) and abs(mean - number["value"]) < ROUNDING


def machine_of(entry: Mapping[str, Any]) -> str:
    """The kind of machine of a stored run; early runs did not note their processor."""
    device = entry.get("device", "cpu")
    processor = entry.get("processor", "a processor that was not noted")
    torch = entry.get("torch", "that was not noted")
    return f"{processor if device == 'cpu' else device}; torch {torch}"


@dataclass(frozen=True, eq=False)
class SeedNumbers:
    """One run as it is stored."""

    test: Counts
    new: Counts
    bytes: int  # both ways, of all clients in all rounds
    seconds: float
    partition: str  # hash of the federation
    machine: str  # the kind that it ran on: processor and torch
    warning: str = ""  # that its end gave

    @staticmethod
    def of(entry: Mapping[str, Any]) -> SeedNumbers:
        """From an entry of a results file."""
        return SeedNumbers(
            read_counts(entry["test"]),
            read_counts(entry["new"]),
            entry["bytes"],
            entry["seconds"],
            entry["partition"],
            machine_of(entry),
            entry.get(WARNING, ""),
        )

    @cached_property
    def accuracies(self) -> dict[int, float]:
        """Of every client that trains."""
        return {client: right / labels for client, (right, labels) in self.test.items()}

    @cached_property
    def new_accuracies(self) -> dict[int, float]:
        """Of every client that joins at the end."""
        return {client: right / labels for client, (right, labels) in self.new.items()}
