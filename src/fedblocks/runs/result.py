"""What came out of a run, read from its folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedblocks.core.state import State
from fedblocks.runs import checkpoint
from fedblocks.runs.config import Config
from fedblocks.runs.folder import RunFolder
from fedblocks.runs.source import Source
from fedblocks.runs.states import state_of
from fedblocks.runs.store import Part, RunStore, Summary


@dataclass(frozen=True)
class Evaluated:
    """One evaluation."""

    round: int
    summaries: Mapping[str, Mapping[str, Summary]]  # part -> view -> numbers, as `store.summarise` explains them


@dataclass(frozen=True)
class RunResult:
    """A run, finished or not."""

    folder: Path
    config: Config
    status: str
    rounds: int  # on record
    seconds: float  # of all rounds, evaluations included
    bytes_down: int
    bytes_up: int
    last: Evaluated | None
    best: Evaluated | None  # by the mean validation accuracy; never chosen on test data
    notes: list[dict[str, Any]] = field(default_factory=list)

    def state(self) -> State:
        """Models and everything else that the run had learned at its last checkpoint, on the CPU."""
        return state_of(checkpoint.load(self.folder / "checkpoints"), "cpu")

    def summary(
        self, part: Part = "test", view: str = "personal", round: int | None = None, reference: RunResult | None = None
    ) -> Summary:
        """The numbers of one evaluation, the last by default; with a reference run, the share of clients below it."""
        with RunFolder.open(self.folder) as folder:
            asked = round if round is not None else _last_evaluated(folder.store)
            below = reference.accuracies(part, view) if reference is not None else None
            return folder.store.summary(asked, part, view, below)

    def accuracies(self, part: Part = "test", view: str = "personal", round: int | None = None) -> dict[int, float]:
        """The accuracy of every client in one evaluation, the last by default."""
        with RunFolder.open(self.folder) as folder:
            asked = round if round is not None else _last_evaluated(folder.store)
            return folder.store.accuracies(asked, part, view)

    def as_json(self) -> dict[str, Any]:
        """Everything above as plain values."""
        return {
            "name": self.folder.name,
            "folder": str(self.folder),
            "status": self.status,
            "method": self.config.method.name,
            "rounds": self.rounds,
            "seconds": self.seconds,
            "bytes_down": self.bytes_down,
            "bytes_up": self.bytes_up,
            "last": _plain(self.last),
            "best_by_validation": _plain(self.best),
            "notes": self.notes,
        }


def load_run(path: str | Path) -> RunResult:
    """The run in a folder."""
    with RunFolder.open(Path(path)) as folder:
        store = folder.store
        totals = store.rows(
            "SELECT COUNT(*) AS n, SUM(seconds) AS s, SUM(bytes_down) AS d, SUM(bytes_up) AS u FROM rounds"
        )[0]
        evaluated = store.rows("SELECT MAX(round) AS round FROM means")[0]["round"]
        return RunResult(
            folder=folder.path,
            config=config_of(folder),
            status=folder.status,
            rounds=totals["n"],
            seconds=totals["s"] or 0.0,
            bytes_down=totals["d"] or 0,
            bytes_up=totals["u"] or 0,
            last=_evaluated(store, evaluated),
            best=_evaluated(store, store.best_round()),
            notes=store.rows("SELECT round, level, text FROM notes ORDER BY rowid"),
        )


def config_of(folder: RunFolder) -> Config:
    """The configuration that a run was started with."""
    path = folder.path / "config.toml"
    return Config.of(folder.config, Source(str(path), path.read_text(encoding="utf-8")))


def _evaluated(store: RunStore, round: int | None) -> Evaluated | None:
    if round is None:
        return None
    found: dict[str, dict[str, Summary]] = {}
    for row in store.rows("SELECT part, view FROM means WHERE round = ? ORDER BY part, view", round):
        found.setdefault(row["part"], {})[row["view"]] = store.summary(round, row["part"], row["view"])
    return Evaluated(round, found)


def _last_evaluated(store: RunStore) -> int:
    return int(store.rows("SELECT MAX(round) AS round FROM means")[0]["round"] or 0)


def _plain(evaluated: Evaluated | None) -> dict[str, Any] | None:
    return None if evaluated is None else {"round": evaluated.round, **evaluated.summaries}
