"""One round of a run as a rank plays it: who takes part, what they learn, how well it works."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedblocks.core.state import State
from fedblocks.engines.close_round import Report
from fedblocks.engines.failures import unscored
from fedblocks.engines.round import Engine, Portraits
from fedblocks.runs.build import Prepared
from fedblocks.runs.faults import ABSENT, faults_of, note_absent
from fedblocks.runs.ranks.experiment import RankExperiment
from fedblocks.runs.ranks.ranks import Ranks
from fedblocks.runs.ranks.reports import gather_evaluation, gather_report, gather_small
from fedblocks.runs.ranks.training import RankRounds
from fedblocks.runs.rounds import (
    attempt,
    cohort_of,
    conclusions_of,
    is_due,
    metrics_of,
    part_scored,
    record,
)
from fedblocks.runs.storage.environment import now
from fedblocks.runs.storage.record import ClientMetric, Note, RoundRecord
from fedblocks.runs.storage.states import settle


@dataclass(frozen=True, eq=False)
class RankRun:
    """A run that could start, as one of its ranks sees it."""

    ranks: Ranks
    prepared: Prepared
    experiment: RankExperiment
    clients_text: str  # names and sizes of all clients, for the record

    def play(self, state: State, engine: Engine) -> tuple[Engine, tuple[State, RoundRecord]]:
        """One round; if memory does not suffice at one rank, all go on with fewer clients at once.
        The record is of all clients at the first rank, elsewhere of nobody's use.
        """
        notes: list[Note] = []
        work = lambda engine: self._play(state, engine, notes)
        return attempt(work, engine, self.prepared.cohort, notes)

    def _play(
        self, state: State, engine: Engine, notes: Sequence[Note]
    ) -> tuple[State, RoundRecord]:
        began = time.perf_counter()
        started_at = now()
        prepared, round = self.prepared, state.round
        rounds = RankRounds(self.ranks, self.experiment, engine)
        after, report = self._train(rounds, state)
        after = settle(after)
        metrics: list[ClientMetric] = []
        portraits: Portraits | None = None
        shown = after
        if is_due(prepared, round):
            metrics, portraits, report = self._evaluate(rounds, after, report)
            shown = replace(after, private=gather_small(self.ranks, after.private))
        said = [*notes, *conclusions_of(prepared, round, portraits)] if self.ranks.first else []
        early = metrics_of("test", report.counts, prepared.experiment.data.task)
        whole = record(shown, report, [*early, *metrics], portraits, said)
        seconds = time.perf_counter() - began
        return after, replace(whole, seconds=seconds, started_at=started_at)

    def _train(self, rounds: RankRounds, state: State) -> tuple[State, Report]:
        prepared, round = self.prepared, state.round
        cohort = cohort_of(prepared, round)
        faults = faults_of(prepared, round, cohort)
        present = [i for i in cohort if faults.get(i) not in ABSENT]
        corrupt = {i for i, fault in faults.items() if fault == "corrupt"}
        score = part_scored(prepared, is_due(prepared, round))
        after, report = rounds.run_round(state, present, score, corrupt)
        if faults:
            noted = note_absent(prepared, state, report, faults)
            # who was absent is said once
            refusals = (
                noted.refusals if self.ranks.first else noted.refusals[: len(report.refusals)]
            )
            report = replace(noted, refusals=refusals)
        return after, gather_report(self.ranks, report)

    def _evaluate(
        self, rounds: RankRounds, state: State, report: Report
    ) -> tuple[list[ClientMetric], Portraits, Report]:
        prepared = self.prepared
        parts = prepared.config.evaluation.parts
        metrics: list[ClientMetric] = []
        portraits: Portraits = {}
        failures = []
        task = prepared.experiment.data.task
        if parts:
            own = rounds.evaluate_parts(state, prepared.clients, parts)
            seen = gather_evaluation(self.ranks, own)
            portraits = seen.portraits
            failures += seen.failures
            for part in parts:
                metrics += metrics_of(part, seen.scores.get(part, {}), task)
        if prepared.unseen:
            own = rounds.evaluate_parts(state, prepared.unseen, ("test",), joining=True)
            new = gather_evaluation(self.ranks, own)
            metrics += metrics_of("unseen", new.scores.get("test", {}), task)
            failures += new.failures
        return metrics, portraits, replace(report, refusals=[*report.refusals, *unscored(failures)])
