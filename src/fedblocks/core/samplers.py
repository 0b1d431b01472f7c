"""Who is asked to take part in a round: a function of the seed and the round, like all chance."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from fedblocks.core.checks import Checked
from fedblocks.core.client_names import client_numbers
from fedblocks.core.errors import DataError, UserError, a_kind, nearest
from fedblocks.core.options import AtLeast, Conflict, Help
from fedblocks.core.own_code import own_code, own_name
from fedblocks.core.special_files import refuse_special

__all__ = [
    "SAMPLERS",
    "Candidates",
    "Sampler",
    "SizeSampler",
    "TraceSampler",
    "UniformSampler",
]


@dataclass(frozen=True, eq=False)
class Candidates:
    """The clients that a sampler may choose from, and how many it is asked for."""

    ids: Sequence[int]  # numbers of the clients, rising
    sizes: npt.NDArray[np.int64]  # [all clients], training examples, by number
    names: Sequence[str]  # of all clients, by number
    count: int  # that is asked for, at most as many as there are
    round: int  # from 1 on, as in traces, listeners and the record
    draw: np.random.Generator  # a function of seed and round


@runtime_checkable
class Sampler(Protocol):
    """A way to choose the clients of a round.

    The same candidates must give the same clients: a run asks more than once, and again after it
    was stopped. All chance is in `candidates.draw`. Clients are given by number or by name.
    """

    def __call__(self, candidates: Candidates) -> Sequence[int | str]: ...


@dataclass(frozen=True)
class UniformSampler(Checked):
    """Every client as likely as any other."""

    def __call__(self, candidates: Candidates) -> list[int]:
        chosen = candidates.draw.choice(len(candidates.ids), candidates.count, replace=False)
        return [candidates.ids[i] for i in chosen]


@dataclass(frozen=True)
class SizeSampler(Checked):
    """Clients with more training examples more often: drawn one by one, by their share of the
    examples of those that are left; clients without examples never.
    """

    needs_sizes: ClassVar[bool] = True  # which the server of a real federation does not know

    def __call__(self, candidates: Candidates) -> list[int]:
        sizes = candidates.sizes[np.asarray(candidates.ids, dtype=np.int64)]  # [candidates]
        count = min(candidates.count, int((sizes > 0).sum()))
        if not count:
            return []
        shares = sizes / sizes.sum()
        chosen = candidates.draw.choice(len(candidates.ids), count, replace=False, p=shares)
        return [candidates.ids[i] for i in chosen]


@dataclass(frozen=True)
class TraceSampler(Checked):
    """Uniform among those who are there, as a trace says round by round; it starts over when it
    ends. Where fewer are there than a round asks for, all of them take part.
    """

    path: Annotated[
        str | None,
        Help("a CSV file with the columns round (from 1) and client (its name, or its number)"),
    ] = None
    rounds: Annotated[
        tuple[tuple[int | str, ...], ...] | None,
        AtLeast(0),
        Help("numbers or names of clients, round by round"),
    ] = None

    def __post_init__(self) -> None:
        if self.rounds is not None:  # lists are as good, and are the same trace
            object.__setattr__(self, "rounds", tuple(map(tuple, self.rounds)))

    def conflicts(self) -> list[Conflict]:
        if (self.path is None) == (self.rounds is None):
            why = "a trace is either a file (path) or a list (rounds)"
            return [Conflict("path", why, "give one of the two")]
        return [] if self.rounds != () else [Conflict("rounds", "is empty", "list some clients")]

    def __call__(self, candidates: Candidates) -> list[int]:
        there = self.numbers(candidates.round, candidates.names)
        present = [i for i in candidates.ids if i in there]
        count = min(candidates.count, len(present))
        return [present[i] for i in candidates.draw.choice(len(present), count, replace=False)]

    def numbers(self, round: int, names: Sequence[str]) -> set[int]:
        """The clients who are there in a round, counted from 1."""
        return {*client_numbers(self.by_round[(round - 1) % len(self.by_round)], names)}

    def check_names(self, names: Sequence[str]) -> None:
        """Refuse a trace that names a client, in whatever round, who is not in the data."""
        everybody = sorted({client for there in self.by_round for client in there}, key=str)
        try:
            client_numbers(everybody, names)
        except DataError as error:
            where = f"the trace {self.path}" if self.path is not None else "the trace"
            raise DataError(f"{where}: {error.message}", error.fix) from error

    @cached_property
    def by_round(self) -> list[set[int | str]]:
        """Who is there, as it is written, round by round."""
        if self.rounds is not None:
            return [{*there} for there in self.rounds]
        rows = _read_trace(Path(str(self.path)))
        last = max(round for round, _ in rows)
        return [{client for at, client in rows if at == round} for round in range(1, last + 1)]

    @property
    def content_hash(self) -> str:
        """Of the trace: a run that goes on must have the same."""
        whole = self.rounds if self.path is None else [sorted(map(str, o)) for o in self.by_round]
        return sha256(repr(whole).encode()).hexdigest()


def _read_trace(path: Path) -> list[tuple[int, str]]:
    refuse_special(path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            names = [name.strip() for name in reader.fieldnames or ()]
            reader.fieldnames = names
            lines = [{k: str(v).strip() for k, v in row.items()} for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"the trace {path} cannot be read: {error}", "name a CSV file") from error
    for column in ("round", "client"):
        if column not in names:
            fix = nearest(column, names)
            raise DataError(f'the trace {path} has no column "{column}"', fix)
    rows = [(_round_in(path, n, line["round"]), line["client"]) for n, line in enumerate(lines, 2)]
    if not rows:
        raise DataError(f"the trace {path} has no rows", "write a row for each client and round")
    return rows


MOST_ROUNDS = 10_000_000  # of a trace


def _round_in(path: Path, line: int, text: str) -> int:
    if text.isascii() and text.isdigit() and 1 <= len(text) <= 8 and 1 <= int(text) <= MOST_ROUNDS:
        return int(text)
    raise DataError(
        f'line {line} of the trace {path}: "{text[:40]}" is no round', "count rounds from 1"
    )


# `{name = ...}` under [cohort] -> what it makes
SAMPLERS: dict[str, Callable[..., Any]] = {
    "uniform": UniformSampler,
    "by_size": SizeSampler,
    "trace": TraceSampler,
}


def choose_clients(sampler: Sampler, candidates: Candidates) -> list[int]:
    """The numbers of those whom a sampler chooses, in order; refused unless it are candidates, each
    once.
    """
    if type(sampler) in SAMPLERS.values() and type(sampler).__module__ == __name__:
        return sorted(map(int, sampler(candidates)))  # ours; a look at a million ids takes its time
    who = f'the sampler "{own_name(sampler)}"'
    fix = "return a list of some of candidates.ids, or of their names"
    with own_code(who, fix):
        answer = sampler(candidates)
    if isinstance(answer, str | bytes) or not isinstance(answer, Iterable):
        answered = repr(answer) if answer is None or isinstance(answer, str) else a_kind(answer)
        raise UserError(f"{who} gave {answered}, not a list of clients", fix)
    try:
        chosen = client_numbers(answer, candidates.names)
    except DataError as error:
        raise UserError(f"{who}: {error.message}", f"{fix}: {error.fix}") from error
    if strange := {*chosen} - {*candidates.ids}:
        client = f'client {min(strange)}, "{candidates.names[min(strange)]}"'
        raise UserError(f"{who} chose {client}, who is no candidate", fix)
    if len({*chosen}) < len(chosen):
        twice = next(client for client in chosen if chosen.count(client) > 1)
        raise UserError(f"{who} chose client {twice} twice", "return each client once")
    return sorted(chosen)
