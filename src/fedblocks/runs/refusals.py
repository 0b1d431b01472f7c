"""How many updates of a run were not used."""

from __future__ import annotations

from typing import NamedTuple

from fedblocks.runs.storage.store import RunStore


class Refused(NamedTuple):
    """Updates that were not used."""

    updates: int
    of: int  # updates in all
    in_last_round: int
    of_last_round: int
    reason: str  # of the latest

    @property
    def text(self) -> str:
        """One sentence; nothing if every update was used."""
        if self.in_last_round > 0:
            share = f"{self.in_last_round} of {self.of_last_round} updates of the last round"
        else:
            share = f"{self.updates} of {self.of} updates"
        return f"{share} were refused (the latest: {self.reason})" if self.updates else ""


def read_refusals(store: RunStore) -> Refused:
    """How many updates were not used, in all rounds and in the last."""
    rows = store.rows("SELECT DISTINCT round, client FROM refusals")
    rounds = store.rows("SELECT round, clients FROM rounds ORDER BY round")
    first = store.rows("SELECT reason, detail FROM refusals ORDER BY round DESC, rowid LIMIT 1")
    last = rounds[-1] if rounds else {"round": 0, "clients": 0}
    in_last = sum(row["round"] == last["round"] for row in rows)
    reason = f"{first[0]['reason']}: {first[0]['detail']}" if first else ""
    return Refused(
        len(rows), sum(row["clients"] for row in rounds), in_last, last["clients"], reason
    )
