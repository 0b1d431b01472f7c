"""Local training and evaluation on several ranks: each does its own clients."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from fedblocks.core.admission import Refusal
from fedblocks.core.errors import UserError
from fedblocks.core.private_state import merge_private
from fedblocks.core.state import State
from fedblocks.engines.close_round import (
    Admitted,
    ClientResults,
    Report,
    admit_group,
    private_by_client,
    report_of,
)
from fedblocks.engines.failures import FAILED, ClientFailures, describe
from fedblocks.engines.job import Job
from fedblocks.engines.lanes.joined import spoil
from fedblocks.engines.round import Engine, Evaluation, evaluation_job
from fedblocks.engines.sequential import Sequential
from fedblocks.kernels.device_errors import is_of_device, shortages_alike
from fedblocks.runs.ranks.closing import close_together
from fedblocks.runs.ranks.experiment import RankExperiment
from fedblocks.runs.ranks.ranks import Ranks

Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class RankRounds:
    """Rounds and evaluations of one experiment, as one of its ranks plays them."""

    ranks: Ranks
    experiment: RankExperiment
    engine: Engine
    failures: list[Refusal] = field(default_factory=list)  # of this rank's clients

    def run_round(
        self, state: State, clients: Sequence[int], score: str | None, corrupt: Collection[int]
    ) -> tuple[State, Report]:
        """One round; the report is of this rank's clients."""
        results: dict[str, ClientResults] = {}
        admitted: dict[str, Admitted] = {}

        def train(job: Job) -> tuple[ClientResults, Admitted]:
            trained = spoil(self.engine.train(job, score), [i in corrupt for i in job.ids])
            own = ClientResults.of(job, trained)
            return own, admit_group(own, state)

        for group, ids in self.experiment.members(clients).items():
            training = lambda left, group=group: self.experiment.training_job(group, left, state)
            for _, own in self._carry_out(training, ids, train):
                results[group], admitted[group] = own
        refusals = [refusal for group in admitted.values() for refusal in group.refusals]
        after = close_together(self.ranks, self.experiment, state, admitted)
        refused = {refusal.client for refusal in refusals}
        kept = private_by_client(results, refused, self.experiment.trained_here)
        after = replace(after, private=merge_private(state.private, kept))
        return after, report_of(results, [*refusals, *self._failures()])

    def evaluate_parts(
        self, state: State, clients: Sequence[int], parts: Sequence[str], joining: bool = False
    ) -> Evaluation:
        """How this rank's clients do."""
        evaluation = Evaluation()
        for group, ids in self.experiment.members(clients).items():
            trying = lambda left, group=group: evaluation_job(
                self.experiment, group, left, state, joining
            )
            evaluate = lambda job: self.engine.evaluate(job, parts)
            for job, evaluated in self._carry_out(trying, ids, evaluate):
                evaluation.add(evaluated, job.ids)
        evaluation.failures.extend(self._failures())
        return evaluation

    def _failures(self) -> list[Refusal]:
        """Whose work has failed since this was asked last."""
        failures = list(self.failures)
        self.failures.clear()
        return failures

    def _carry_out(
        self,
        job_for: Callable[[Sequence[int]], Job],
        clients: Sequence[int],
        work: Callable[[Job], Result],
    ) -> list[tuple[Job, Result]]:
        """Some work for clients of one group, without those whose own part of it fails; as all
        ranks do it with the same clients, they begin anew together.
        """
        left = list(clients)
        while left:
            done, failed, error = self._attempt(job_for, left, work)
            own = [[refusal.client, refusal.detail] for refusal in failed]
            everybody = len(own) == len(self.experiment.own(left)) > 0
            said = self.ranks.agree(None if everybody else error, own)
            gone = {client for rank in said for client, _ in rank}
            if not gone:
                return done
            if gone == {*left}:
                self.ranks.agree(error)
            self.failures.extend(failed)
            left = [client for client in left if client not in gone]
        return []

    def _attempt(
        self,
        job_for: Callable[[Sequence[int]], Job],
        clients: Sequence[int],
        work: Callable[[Job], Result],
    ) -> tuple[list[tuple[Job, Result]], list[Refusal], Exception | None]:
        """This rank's part: what came out, whose own work failed, and what else went wrong."""
        own = self.experiment.own(clients)
        if not own:
            return [], [], None
        try:
            job = job_for(clients)
            with shortages_alike():
                return [(job, work(job))], [], None
        except ClientFailures as failures:
            errors = failures.by_member.items()
            return [], [Refusal(own[m], FAILED, describe(error)) for m, error in errors], None
        except Exception as error:
            of_all = isinstance(error, UserError) or is_of_device(error)
            mine = isinstance(self.engine, Sequential) and not of_all
            failed = [Refusal(client, FAILED, describe(error)) for client in own] if mine else []
            return [], failed, error
