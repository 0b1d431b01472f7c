"""What came out of a run, read from its folder."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from fedblocks.config.code.ingredients import Ingredients, check_same
from fedblocks.config.model import Config
from fedblocks.config.sources import Source
from fedblocks.config.texts import read_text
from fedblocks.core.errors import UserError
from fedblocks.core.state import State
from fedblocks.runs.client_rows import client_rows
from fedblocks.runs.clients import remarks_on_part
from fedblocks.runs.curves import curves_of
from fedblocks.runs.evaluated import EvaluatedRound, evaluated_round, evaluations_of, last_evaluated
from fedblocks.runs.newest import Which, newest_state, stored_state
from fedblocks.runs.refusals import Refused, read_refusals
from fedblocks.runs.same_data import check_reference
from fedblocks.runs.scored import remark_on_scored, remarks_on_means, unscored_clients
from fedblocks.runs.storage import code_record
from fedblocks.runs.storage.config_record import as_it_was_read, refuse_edited
from fedblocks.runs.storage.folder import CONFIG, RunFolder
from fedblocks.runs.storage.going_on import refuse_lost_rounds
from fedblocks.runs.storage.main_metric import MainMetric
from fedblocks.runs.storage.record import LANES, Part
from fedblocks.runs.storage.store import RunStore
from fedblocks.runs.storage.summary import Summary, remark_on_metric
from fedblocks.runs.tables import SummaryTable, TableRows, describe_run
from fedblocks.runs.timing import warm_seconds


@dataclass(frozen=True)
class RunResult:
    """A run, finished or not."""

    folder: Path
    config: Config
    status: str
    rounds: int  # on record
    seconds: float  # of all rounds, with evaluations, compilation and warm-up
    warm_seconds: float  # the same without compilation and warm-up: of typical rounds
    lanes: int  # runs that were done together and share their seconds; 1: this one alone
    bytes_down: int
    bytes_up: int
    last: EvaluatedRound | None
    # by the mean main metric on validation data; never chosen on test data
    best: EvaluatedRound | None
    notes: list[dict[str, Any]] = field(default_factory=list)
    metric: MainMetric = MainMetric()  # noqa: RUF009 - frozen; by which it is compared
    remarks: list[str] = field(default_factory=list)  # on clients that the means are not over

    __repr__ = describe_run

    def state(self, which: Which = "last") -> State:
        """Models and everything else that the run had learned at its last checkpoint, or at that
        of the round which did best on validation data ("best"), on the CPU.
        """
        if which == "last":  # which needs no record
            return newest_state(self.folder / "checkpoints")
        with RunFolder.open(self.folder) as folder:
            return stored_state(folder, which)

    def summary(
        self,
        part: Part = "test",
        view: str = "personal",
        round: int | None = None,
        reference: RunResult | None = None,
        metric: str | None = None,
    ) -> SummaryTable:
        """The numbers of one evaluation, the last by default; with a reference run, the share of
        clients that do worse than in it. `metric` names another one than the task's main metric.

        Printed, it shows every part and model of that evaluation, and says which clients and
        updates are not in it.
        """
        if reference is not None:
            check_reference(self, reference)
        with RunFolder.open(self.folder) as folder:
            asked = evaluated_round(folder.store, round, part, view)
            below = None if reference is None else _reference_of(reference, metric, part, view)
            numbers = folder.store.summary(asked, part, view, below, metric)
            main = folder.store.metric(metric)
            evaluated = _read_evaluation(folder.store, asked, metric)
            rows = self._summary_rows(evaluated, main.name)
            scored = folder.store.metrics(part, view, asked)
            few = remarks_on_part(folder.store.meta("clients"), part, scored)
            refused = read_refusals(folder.store).text
            defined = remark_on_metric(numbers, main, scored)
            remarks = [defined, remark_on_scored(folder.store, asked)]
            return SummaryTable(numbers, rows, [*few, *remarks, refused])

    def accuracies(
        self, part: Part = "test", view: str = "personal", round: int | None = None
    ) -> dict[int, float]:
        """The accuracy of every client in one evaluation, the last by default."""
        return self.scores("accuracy", part, view, round)

    def scores(
        self,
        metric: str | None = None,
        part: Part = "test",
        view: str = "personal",
        round: int | None = None,
    ) -> dict[int, float]:
        """A metric of every client that has it in one evaluation: by default the task's main
        metric in the last one. "loss" is always there.
        """
        with RunFolder.open(self.folder) as folder:
            asked = evaluated_round(folder.store, round, part, view)
            return folder.store.scores(asked, part, view, metric)

    def clients(self, round: int | None = None) -> TableRows:
        """A row for each client: number, name, training rows, and its accuracy, or the metrics of
        the task, in every part and model; None where it has no such rows.
        """
        with RunFolder.open(self.folder) as folder:
            asked = round if round is not None else last_evaluated(folder.store)
            return TableRows(client_rows(folder.store, asked))

    def curves(self, metric: str | None = None) -> TableRows:
        """A row for each evaluated round: the mean over clients in every part and model, of the
        accuracy or what else is the task's main metric, or of another one; "loss" is always there.
        """
        with RunFolder.open(self.folder) as folder:
            return TableRows(curves_of(folder.store, metric))

    def refused(self) -> Refused:
        """How many updates were not used, in all rounds and in the last."""
        with RunFolder.open(self.folder) as folder:
            return read_refusals(folder.store)

    def report(self, path: str | Path | None = None) -> Path:
        """Write the run as one HTML file, by default report.html in its folder; where
        it was written.
        """
        # it stands above runs, and is needed here alone
        reports = import_module("fedblocks.reports.html")
        written: Path = reports.write_report(self.folder, Path(path) if path is not None else None)
        return written

    def _summary_rows(self, evaluated: EvaluatedRound | None, metric: str) -> TableRows:
        rows = [
            {
                "part": part,
                "model": view,
                "mean": n["mean"],
                "bottom decile": n["bottom_decile"],
                "worst": n["worst"],
                "clients": n["clients"],
            }
            for part, views in (evaluated.summaries if evaluated is not None else {}).items()
            for view, n in views.items()
        ]
        after = evaluated.round if evaluated is not None else 0
        return TableRows(
            rows,
            f"{self.config.method.name}, {metric} of clients after round {after} of "
            f"{self.config.rounds}",
        )

    def _repr_html_(self) -> str:
        return self._summary_rows(self.last, self.metric.name)._repr_html_()

    def as_json(self) -> dict[str, Any]:
        """Everything above as plain values."""
        return {
            "name": self.folder.name,
            "folder": str(self.folder),
            "status": self.status,
            "method": self.config.method.name,
            "rounds": self.rounds,
            "metric": self.metric.name,
            "seconds": self.seconds,
            "warm_seconds": self.warm_seconds,
            "lanes": self.lanes,
            "bytes_down": self.bytes_down,
            "bytes_up": self.bytes_up,
            "last": _plain(self.last),
            "best_by_validation": _plain(self.best),
            "notes": self.notes,
            "remarks": self.remarks,
        }


def load_run(path: str | Path) -> RunResult:
    """The run in a folder, if its record is whole and its configuration as it was."""
    with RunFolder.open(Path(path)) as folder:
        folder.store.verify()
        refuse_edited(folder.store, folder.config)
        return result_of(folder)


def result_of(folder: RunFolder) -> RunResult:
    """A run as it stands; the rows of its record are taken as they are, so that a look costs
    little.
    """
    refuse_lost_rounds(folder)
    store = folder.store
    totals = store.rows(
        "SELECT COUNT(*) AS n, SUM(seconds) AS s, SUM(bytes_down) AS d, SUM(bytes_up) AS u "
        "FROM rounds"
    )[0]
    last, best = last_evaluated(store), store.best_round()
    return RunResult(
        folder=folder.path,
        config=stored_config(folder),
        status=folder.status,
        rounds=totals["n"],
        seconds=totals["s"] or 0.0,
        warm_seconds=sum(warm_seconds(store).values()),
        lanes=int(store.meta(LANES) or 1),
        bytes_down=totals["d"] or 0,
        bytes_up=totals["u"] or 0,
        last=_read_evaluation(store, last),
        best=_read_evaluation(store, best),
        notes=store.rows("SELECT round, level, text FROM notes ORDER BY rowid"),
        metric=store.metric(),
        remarks=remarks_on_means(store, last, best),
    )


def stored_config(folder: RunFolder) -> Config:
    """The configuration that a run was started with, to be read; what it names need not
    be known here.
    """
    return Config.stored(as_it_was_read(folder.config), _source(folder))


def config_of(folder: RunFolder, ingredients: Ingredients | None = None) -> Config:
    """The configuration that a run was started with, to be run: all that it names, or
    is made of, must be there.
    """
    return _complete(folder, folder.config, ingredients)


def models_config_of(folder: RunFolder, ingredients: Ingredients | None = None) -> Config:
    """The same as far as it decides what the models are: the rounds are past, and what chose the
    clients of each need not be there.
    """
    table = {key: value for key, value in folder.config.items() if key != "cohort"}
    return _complete(folder, table, ingredients)


def _complete(folder: RunFolder, table: dict[str, Any], ingredients: Ingredients | None) -> Config:
    config = Config.stored(table, _source(folder))
    if not config.is_of_objects:
        if ingredients is not None:
            fix = "leave out method and data"
            raise UserError(
                f"{folder.path} was started from a configuration, which says its method and data",
                fix,
            )
        code_record.require_names(config, folder.path)
        return Config.of(as_it_was_read(table), _source(folder))
    if ingredients is None:
        raise code_record.require_objects(folder.path)
    check_same(config, ingredients)
    return config.of_objects(ingredients)


def _source(folder: RunFolder) -> Source:
    path = folder.path / CONFIG
    return Source(str(path), read_text(path))


def _read_evaluation(
    store: RunStore, round: int | None, metric: str | None = None
) -> EvaluatedRound | None:
    if round is None:
        return None
    summaries: dict[str, dict[str, Summary]] = {}
    for part, views in evaluations_of(store, round).items():
        for view in views:
            numbers = store.summary(round, part, view, metric=metric)
            if numbers["examples"]:  # somebody has labels in that part
                summaries.setdefault(part, {})[view] = numbers
    return EvaluatedRound(round, summaries)


def _reference_of(run: RunResult, metric: str | None, part: Part, view: str) -> dict[int, float]:
    with RunFolder.open(run.folder) as folder:
        try:
            asked = evaluated_round(folder.store, None, part, view)
        except UserError as error:
            fix = "compare run.scores(part=..., view=...) with those of the reference that it has"
            raise UserError(f"the reference run: {error.message}", fix) from error
        absent = unscored_clients(folder.store, asked)
        # a client for which the metric is not defined was there all the same
        absent |= {row["client"] for row in folder.store.metrics(part, view, asked)}
    return {**dict.fromkeys(absent, math.nan), **run.scores(metric, part, view)}


def _plain(evaluated: EvaluatedRound | None) -> dict[str, Any] | None:
    return None if evaluated is None else {"round": evaluated.round, **evaluated.summaries}
