"""Which clients the means of a round are over, and what is said where that is not everybody.

In a real federation clients report their scores: one whose update of a round was refused for what
it is has none in that round, and one that was absent is scored like a client that was not asked,
where its scores come at all. A simulation scores every client itself, with the model that it has.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from fedblocks.engines.failures import FAILED, UNSCORED
from fedblocks.runs.storage.record import ClientMetric, Part
from fedblocks.runs.storage.store import RunStore

POPULATION = "population"  # under which a record keeps how many clients are scored if all are
# reasons that say nothing against the client's models: it was away, or could not answer
ABSENCES = {
    "dropped-out",
    "late",
    "crashed",
    FAILED,
    UNSCORED,
    "no-answer",
    "unreachable",
    "lost-state",
    "lost-download",
    "client-error",
}


class Reason(Protocol):
    """Why something of a client was not used."""

    @property
    def client(self) -> int: ...

    @property
    def reason(self) -> str: ...


def leave_out_refused(
    metrics: Iterable[ClientMetric], refusals: Iterable[Reason]
) -> list[ClientMetric]:
    """The scores of a round without those of clients whose update of that round was refused."""
    refused = {own.client for own in refusals if own.reason not in ABSENCES}
    return [row for row in metrics if row.client not in refused]


def count_scored(metrics: Iterable[ClientMetric]) -> int:
    """The number of clients with scores in every part; 0: nobody was scored. A client without
    rows in a part has a score of none there.
    """
    clients: dict[str, set[int]] = {}
    for row in metrics:
        if row.view == "personal" and row.part != "unseen":
            clients.setdefault(row.part, set()).add(row.client)
    return min(map(len, clients.values()), default=0)


def read_scored(store: RunStore, round: int) -> tuple[int, int]:
    """The numbers of clients that were scored after a round, and that would be if all were; 0
    where the record does not say.
    """
    query = (
        "SELECT COUNT(*) AS clients FROM client_metrics WHERE round = ? AND view = 'personal' "
        "AND part != 'unseen' GROUP BY part"
    )
    scored = min((row["clients"] for row in store.rows(query, round)), default=0)
    return scored, int(store.meta(POPULATION) or 0)


def unscored_clients(store: RunStore, round: int) -> set[int]:
    """The clients of which something was refused, or failed, in a round."""
    rows = store.rows("SELECT DISTINCT client FROM refusals WHERE round = ?", round)
    return {row["client"] for row in rows}


def scored_text(scored: int, population: int) -> str:
    """Such as `1 of 2 scored`; nothing where all were, or nobody knows."""
    return f"{scored} of {population} scored" if 0 < scored < population else ""


def remarks_on_means(store: RunStore, last: int | None, best: int | None) -> list[str]:
    """What the means of the last and the best round do not show of clients without scores."""
    rounds = dict.fromkeys(round for round in (last, best) if round is not None)
    remarks = [remark_on_scored(store, round) for round in rounds]
    return [text for text in (*remarks, remark_on_best(store)) if text]


def remark_on_scored(store: RunStore, round: int) -> str:
    """Such as `1 of 2 scored after round 3`; nothing where all were."""
    text = scored_text(*read_scored(store, round))
    return f"{text} after round {round}" if text else ""


def remark_on_best(store: RunStore, part: Part = "validation", view: str = "personal") -> str:
    """A sentence where the rounds from which the best is chosen did not score the same clients."""
    own = "FROM means WHERE part = ? AND view = ?"
    counts = store.rows(f"SELECT MIN(clients) AS least, MAX(clients) AS most {own}", part, view)[0]
    if counts["most"] is None:
        return ""
    if counts["least"] < counts["most"]:
        return (
            f"rounds scored {counts['least']} to {counts['most']} clients: the best by {part} is "
            f"chosen among those that scored {counts['most']}"
        )
    # where nobody was ever refused or missing, the same number is the same clients
    if not store.rows("SELECT 1 FROM refusals LIMIT 1"):
        return ""
    query = "SELECT COUNT(DISTINCT client) AS n FROM client_metrics WHERE part = ? AND view = ?"
    if store.rows(f"{query} AND examples > 0", part, view)[0]["n"] <= counts["most"]:
        return ""
    return (
        f"rounds scored equally many clients, not the same ones: the best by {part} is chosen "
        f"between means over different clients"
    )
