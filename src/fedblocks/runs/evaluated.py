"""Which evaluations a run has, for questions about one that it has not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedblocks.core.errors import UserError, nearest
from fedblocks.runs.clients import remark_on_rows
from fedblocks.runs.storage.record import Part
from fedblocks.runs.storage.store import RunStore
from fedblocks.runs.storage.summary import Summary

SHOWN = 8  # rounds that are listed


@dataclass(frozen=True)
class EvaluatedRound:
    """One evaluation."""

    round: int
    # part -> view -> numbers, as `summarise` explains them
    summaries: Mapping[str, Mapping[str, Summary]]


def last_evaluated(store: RunStore) -> int | None:
    """The last round after which models were tried; none: there is no such round."""
    row = store.rows("SELECT MAX(round) AS round FROM client_metrics")[0]
    return None if row["round"] is None else int(row["round"])


def evaluations_of(store: RunStore, round: int) -> dict[Part, list[str]]:
    """Part of the data -> models that were tried on it after a round."""
    query = "SELECT DISTINCT part, view FROM client_metrics WHERE round = ? ORDER BY part, view"
    views: dict[Part, list[str]] = {}
    for row in store.rows(query, round):
        views.setdefault(row["part"], []).append(row["view"])
    return views


def evaluated_round(store: RunStore, round: int | None, part: Part, view: str) -> int:
    """The round, by default the last, if the model was tried on that part after it."""
    asked = last_evaluated(store) if round is None else round
    if asked is None:
        raise UserError("the run has no evaluation yet", "wait for its first one")
    views = evaluations_of(store, asked)
    nobody = remark_on_rows(store.meta("clients"), part)
    if nobody.startswith("no client"):
        fix = "give every client some: split=(0.6, 0.2, 0.2), which takes 2 rows of each or more"
        raise UserError(nobody, fix)
    if not views:
        raise UserError(f"round = {asked}: it was not evaluated", f"choose from {_rounds(store)}")
    if part not in views:
        raise UserError(
            f'part = "{part}": round {asked} has no evaluation of such data',
            nearest(str(part), views),
        )
    if view not in views[part]:
        raise UserError(
            f'view = "{view}": round {asked} has no {part} evaluation of such a model',
            nearest(str(view), views[part]),
        )
    return asked


def _rounds(store: RunStore) -> str:
    rows = store.rows("SELECT DISTINCT round FROM client_metrics ORDER BY round")
    numbers = [str(row["round"]) for row in rows]
    if len(numbers) <= SHOWN:
        return ", ".join(numbers)
    return f"{', '.join(numbers[: SHOWN - 1])}, ..., {numbers[-1]}"
