"""Early stopping that a configuration asks for; where a run goes on, so does its patience."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from fedblocks.config.model import Config
from fedblocks.core.errors import DataError
from fedblocks.data import Federation
from fedblocks.data.targets import has_known_targets
from fedblocks.runs.federations import placed
from fedblocks.runs.progress import OnNote, RoundDone
from fedblocks.runs.stopping import EarlyStopping, StopRun
from fedblocks.runs.storage.record import Note
from fedblocks.runs.storage.store import RunStore

SINCE = "patience-since"  # under which a run keeps the round after which patience began anew


def patience_of(config: Config, store: RunStore, round: int, tell: OnNote) -> EarlyStopping | None:
    """The early stopping of a run that stands after some round: it has seen all evaluations so
    far. None: the configuration asks for none. `tell` hears of evaluations that say nothing.
    """
    chosen = config.stopping
    if chosen is None:
        return None
    patience = EarlyStopping(chosen.patience, chosen.least, chosen.part)

    def tell_and_note(note: Note) -> None:
        store.note(note.text, note.level)
        tell(note)

    patience.tell = tell_and_note
    means = (
        "SELECT round, accuracy, clients FROM means WHERE part = ? AND view = 'personal' "
        "AND round > ? AND round <= ? ORDER BY round"
    )
    metric = store.metric()
    with suppress(StopRun):
        for row in store.rows(means, chosen.part, int(store.meta(SINCE) or 0), round):
            scores: dict[str, float] = {chosen.part: row["accuracy"]}
            counted: dict[str, int] = {chosen.part: row["clients"]}
            done = RoundDone(row["round"], config.rounds, 0, 0.0, 0, 0, 0, scores, metric=metric)
            patience(replace(done, counted=counted))
    return patience


def check_stopping(config: Config, federation: Federation) -> None:
    """Refuse to wait for a part of the data that nobody has; the server of a real federation
    cannot see.
    """
    chosen = config.stopping
    if chosen is None or has_known_targets(federation, chosen.part):
        return
    with placed(config, ("stopping", "part")):
        message = f"no client has {chosen.part} data, by which the run is to be stopped"
        raise DataError(message, "split the data with such a share, e.g. split = [0.6, 0.2, 0.2]")
