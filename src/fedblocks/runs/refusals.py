"""How many updates of a run were not used, and what is said of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fedblocks.core.errors import count_of
from fedblocks.core.state import State
from fedblocks.engines.close_round import Report
from fedblocks.engines.failures import FAILED, UNSCORED
from fedblocks.runs.broken_servers import GIVES_NAN, holds_nan
from fedblocks.runs.progress import OnNote
from fedblocks.runs.ranks.joining import is_first
from fedblocks.runs.storage.record import Note
from fedblocks.runs.storage.store import RunStore

if TYPE_CHECKING:
    from fedblocks.runs.result import RunResult

NOT_FINITE = "not-finite"
ON_PURPOSE = "a fault on purpose"  # ends the detail of what [faults] planted
PLANTED = "[faults] in its configuration asks for that"
NAMED = 3  # clients that are named
LARGE = "look for very large inputs or targets"
ADVICE = f"{LARGE} first; if training diverges, try a lower learning rate"


class Refused(NamedTuple):
    """Updates that were not used."""

    updates: int
    of: int  # updates that were asked for in all
    in_last_round: int
    of_last_round: int
    reason: str  # of the latest
    clients: tuple[int, ...] = ()  # whose they are, in all rounds
    unscored: tuple[int, ...] = ()  # clients whose evaluation failed
    unscored_reason: str = ""  # of the latest of them
    cause: str = ""  # the note that says which code made the server's blocks NaN
    clients_of_last: tuple[int, ...] = ()  # whose those of the last round are

    @property
    def text(self) -> str:
        """One sentence; nothing if every update was used, and every client evaluated."""
        if self.in_last_round > 0:
            share = f"{self.in_last_round} of {self.of_last_round} updates of the last round"
            clients = self.clients_of_last
        else:
            share, clients = f"{self.updates} of {self.of} updates", self.clients
        whose = f"{_names(clients)}; " if clients else ""
        refused = f"{share} were refused ({whose}the latest: {self.reason})"
        lost = f"{_names(self.unscored)} could not be evaluated ({self.unscored_reason})"
        parts = [refused] * (self.updates > 0) + [lost] * bool(self.unscored)
        return "; ".join(parts)

    @property
    def warning(self) -> str:
        """What is said of it at the end of a run; nothing if there is nothing to say."""
        return "; ".join(part for part in (self.text, self.advice) if part)

    @property
    def advice(self) -> str:
        """What may help against the latest; an error of a client says it itself."""
        if self.cause:
            return self.cause
        if self.reason.endswith(ON_PURPOSE):
            return PLANTED
        return ADVICE if self.reason.startswith(NOT_FINITE) else ""


def told_of_seeds(warned: Mapping[Any, str]) -> str:
    """The warning of the first of several seeds, and which others have one."""
    (seed, text), *others = warned.items()
    seeds = ", ".join(str(other) for other, _ in others)
    also = f"; {'seed' if len(others) == 1 else 'seeds'} {seeds} likewise" if others else ""
    return f"seed {seed}: {text}{also}"


def warnings_of(runs: Mapping[str, Mapping[int, RunResult]]) -> list[str]:
    """What the ends of runs warned of, once for each method."""
    lines: list[str] = []
    for name, by_seed in runs.items():
        texts = {seed: run.refused().warning for seed, run in by_seed.items()}
        warned = {seed: text for seed, text in texts.items() if text}
        lines += [f"{name}, {told_of_seeds(warned)}"] if warned else []
    return lines


def _names(clients: Sequence[int]) -> str:
    if len(clients) > NAMED:
        return count_of(len(clients), "client")
    numbers = " and ".join(str(client) for client in clients)
    return f"client{'s' if len(clients) > 1 else ''} {numbers}"


def read_refusals(store: RunStore) -> Refused:
    """How many updates were not used, in all rounds and in the last."""
    updates = f"FROM refusals WHERE reason != '{UNSCORED}'"
    rows = store.rows(f"SELECT DISTINCT round, client {updates}")
    rounds = store.rows("SELECT round, clients FROM rounds ORDER BY round")
    first = store.rows(f"SELECT reason, detail {updates} ORDER BY round DESC, rowid LIMIT 1")
    last = rounds[-1] if rounds else {"round": 0, "clients": 0}
    in_last = tuple(sorted(row["client"] for row in rows if row["round"] == last["round"]))
    reason = f"{first[0]['reason']}: {first[0]['detail']}" if first else ""
    whose = tuple(sorted({row["client"] for row in rows}))
    asked = sum(row["clients"] for row in rounds)
    lost = store.rows(f"SELECT client, detail FROM refusals WHERE reason = '{UNSCORED}'")
    unscored = tuple(sorted({row["client"] for row in lost}))
    why = lost[-1]["detail"] if lost else ""
    causes = store.rows(f"SELECT text FROM notes WHERE text LIKE '%{GIVES_NAN}%' LIMIT 1")
    cause = causes[0]["text"] if causes else ""
    of_last = last["clients"]
    return Refused(
        updates=len(rows),
        of=asked,
        in_last_round=len(in_last),
        of_last_round=of_last,
        reason=reason,
        clients=whose,
        unscored=unscored,
        unscored_reason=why,
        cause=cause,
        clients_of_last=in_last,
    )


def notes_of_refusals(report: Report, after: State) -> list[Note]:
    """A warning after a round from which nothing was used."""
    here = {*report.clients}
    refused = [
        r for r in report.refusals if r.client in here and r.reason not in (FAILED, UNSCORED)
    ]
    if not report.clients or len({r.client for r in refused}) < len(report.clients):
        return []
    first = refused[0]
    is_ours = first.reason == NOT_FINITE and not first.detail.endswith(ON_PURPOSE)
    advice = f"; {LARGE}, or try a lower learning rate" if is_ours else ""
    if broken := [name for name, slots in after.server.items() if holds_nan(slots)]:
        advice = f'; the server\'s block "{broken[0]}" is NaN'
    text = f"every update was refused ({first.reason}: {first.detail}){advice}"
    return [Note(text, "warning")]


def tell_of_refusals(result: RunResult, tell: OnNote) -> RunResult:
    """Say at the end of a run that updates are not in it."""
    refused = result.refused()
    if refused.text and is_first():
        tell(Note(refused.warning, "warning"))
    return result
