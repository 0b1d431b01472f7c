"""A run on the server of a real federation: the rounds of a configuration over Flower,
written to a run folder.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedblocks.config.model import Config
from fedblocks.core.errors import UserError
from fedblocks.flower.server import progress as progresses
from fedblocks.flower.server.app import Link, RoundRules, play_round, run_rounds
from fedblocks.flower.server.enrolment import CEILING, EnrolmentFiles
from fedblocks.flower.server.jobs import ServerJob, command_for, load_job, working_on
from fedblocks.flower.server.recording import add_metrics, record_of, rows_of
from fedblocks.flower.server.registry import Registry
from fedblocks.flower.server.rounds import OpenRound
from fedblocks.flower.server.side import Ask, Closed, Progress, ServerSide
from fedblocks.flower.server.watching import note_failure
from fedblocks.flower.wire.messages import Part
from fedblocks.flower.wire.run_spec import shape_of
from fedblocks.flower.wire.sampling_check import check_sampling
from fedblocks.runs.build import Prepared, prepare
from fedblocks.runs.result import config_of
from fedblocks.runs.rounds import cohort_of, metrics_of
from fedblocks.runs.run import check_untouched, threads
from fedblocks.runs.scored import POPULATION
from fedblocks.runs.storage import checkpoint
from fedblocks.runs.storage.environment import now
from fedblocks.runs.storage.folder import RunFolder
from fedblocks.runs.storage.going_on import notes_on_skipped, notes_on_starting_anew
from fedblocks.runs.storage.main_metric import MainMetric
from fedblocks.runs.storage.record import Note
from fedblocks.runs.storage.states import settle

if TYPE_CHECKING:
    from flwr.serverapp import Grid

CLAIMS = "claims"  # what a run's folder calls the examples that clients said they have


def serve(grid: Grid, server: Path, name: str) -> None:
    """Carry out a job, and write how it ended to the job's file and to the run folder."""
    with working_on(server, name) as job, RunFolder.open(Path(job.folder)) as folder:
        config = config_of(folder)
        with threads(config.threads):
            service = Service.of(grid, server, job, folder, config)
            # it may go on beside the training of the same run, whose folder it only reads
            if job.kind == "adapt":
                service.adapt()
            else:
                folder.claim()
                check_untouched(folder)
                with _ending(folder, lambda: load_job(server, name).status == "stopped"):
                    service.train()


@contextmanager
def _ending(folder: RunFolder, is_stopped: Callable[[], bool]) -> Iterator[None]:
    """Write to the folder how a run ended; a run whose app is killed, or asked to end,
    stays interrupted.
    """
    folder.set_status("running")
    try:
        yield
    except Exception as error:
        with suppress(UserError):  # a full disk must not hide the first error
            if is_stopped():
                folder.set_status("interrupted")
            else:
                note_failure(folder.store, error)
                folder.set_status("failed")
        raise
    folder.set_status("finished")


@dataclass(eq=False)
class Service:
    """One run on a server."""

    job: ServerJob
    folder: RunFolder
    prepared: Prepared
    side: ServerSide
    registry: Registry
    command: str  # that continues the run
    began: float = field(default_factory=time.perf_counter)
    started_at: str = field(default_factory=now)

    @staticmethod
    def of(grid: Grid, server: Path, job: ServerJob, folder: RunFolder, config: Config) -> Service:
        """Prepare all that the server needs for a job."""
        noted = set[str]()

        def tell(text: str) -> None:
            if text not in noted:
                folder.store.note(text)
            noted.add(text)

        prepared = prepare(config, shape_of(config))
        check_sampling(prepared)
        data = prepared.experiment.data
        # newcomers weigh nothing
        largest = job.largest_examples if job.kind == "train" else CEILING
        stored = json.loads(folder.store.meta(CLAIMS) or "{}")
        claims = {int(client): size for client, size in stored.items()}
        spec = job.spec.model_dump_json()
        labels = data.y.shape[1:].numel()  # of one example
        registry = Registry(grid, EnrolmentFiles(server, largest), labels, spec, tell, claims)
        side = ServerSide(
            methods=prepared.experiment.methods,
            members=registry.members,
            population=data.clients,
            seed=config.seed,
            run=job.spec.run,
            device=data.device,
            share=job.share,
            unseen=prepared.unseen,
            task=data.task,
            turned_away=registry.turned_away,
        )
        command = command_for(server, folder.path)
        return Service(job, folder, prepared, side, registry, command)

    def train(self) -> None:
        """Play all rounds that are left, and evaluate at the end."""
        job, progress = self.job, self._go_on()
        self.folder.store.set_meta(POPULATION, str(len(self.prepared.clients)))
        self.registry.wait(self.prepared.clients, self._minimum(), job.patience)
        rules = RoundRules(
            rounds=self.prepared.config.rounds,
            minimum=self._minimum(),
            seconds=job.seconds,
            goal=self.prepared.cohort if job.more > 1 else None,
            attempts=job.attempts,
            patience=job.patience,
        )
        self._restart_clock()
        last = run_rounds(self.registry, self.side, rules, self._choose, progress, self._closed)
        self._evaluate(last)

    def _go_on(self) -> Progress:
        """Read where the run stands, and note what of it could not be read."""
        store, checkpoints = self.folder.store, self.folder.checkpoints
        progress, skipped = progresses.load(checkpoints, self.side, store.last_round() or 0)
        done = progress.state.round
        notes = notes_on_skipped(done, skipped) if done else notes_on_starting_anew(self.folder)
        checkpoint.drop_later(checkpoints, done)
        if notes:
            store.write_facts({}, notes)
        return progress

    def _minimum(self) -> int:
        """Return the minimum in whole clients: 0.8 of three is two, or one late client would stop
        such a run.
        """
        return max(1, math.floor(self.job.minimum * self.prepared.cohort + 0.5))

    def _choose(self, progress: Progress, attempt: int) -> tuple[Sequence[int], Ask]:
        """Choose whom to ask, and for what; an evaluation that is due goes with
        training if all clients are asked.
        """
        config, done = self.prepared.config, progress.state.round
        clients = self._cohort(done, attempt)
        score: Part | None = "test" if self._due(done + 1) and config.evaluation.local else None
        if not self._missing(done):
            return clients, Ask(score=score)
        if {*clients} == {*self.prepared.clients}:
            self._unseen(progress)
            return clients, Ask(score=score, evaluate=config.evaluation.parts)
        self._evaluate(progress)
        return clients, Ask(score=score)

    def _cohort(self, done: int, attempt: int) -> list[int]:
        """Return the clients of a simulated round; more of them with `more`, and others
        after a failed attempt.
        """
        count = min(len(self.prepared.clients), math.ceil(self.job.more * self.prepared.cohort))
        if attempt == 0 and count == self.prepared.cohort:
            return cohort_of(self.prepared, done)
        here = [c for c in self.prepared.clients if c in self.registry.nodes]
        if len(here) < self._minimum():
            here = self.prepared.clients  # they are waited for
        return self.prepared.sampling.among(here, count, done, attempt)

    def _due(self, round: int) -> bool:
        config = self.prepared.config
        return round > 0 and (round % config.evaluation.every == 0 or round == config.rounds)

    def _missing(self, round: int) -> bool:
        """Whether the evaluation of a round is due and not done."""
        known = "SELECT 1 FROM means WHERE round = ? AND part = ?"
        return self._due(round) and not self.folder.store.rows(known, round, self._parts[0])

    def _evaluate(self, progress: Progress) -> None:
        """Evaluate the models of all clients, in messages of their own."""
        if self._missing(progress.state.round):
            self._unseen(progress)
            ask = Ask(train=False, evaluate=self._parts)
            closed = self._ask(progress, self.prepared.clients, ask)
            self._note_ignored(closed)
            self._note_metrics(progress.state.round, closed)
            for refusal in closed.report.refusals:
                why = f"after round {progress.state.round}: {refusal.reason}, {refusal.detail}"
                self.folder.store.note(f"client {refusal.client} was not scored {why}")

    @property
    def _parts(self) -> tuple[Part, ...]:
        return self.prepared.config.evaluation.parts

    def _unseen(self, progress: Progress) -> None:
        """Evaluate the models of clients that are never trained on."""
        if self.prepared.unseen:
            join = Ask(train=False, evaluate=("test",), joining=True)
            closed = self._ask(progress, self.prepared.unseen, join)
            counted = closed.evaluated.counts
            by_view = {name.partition("/")[2]: counts for name, counts in counted.items()}
            add_metrics(
                self.folder.store,
                progress.state.round,
                metrics_of("unseen", by_view, self.side.task),
            )

    def _ask(self, progress: Progress, clients: Sequence[int], ask: Ask) -> Closed:
        asked = OpenRound(self.side, progress, clients, ask)
        link = Link.of(self.registry)
        return play_round(link, asked, 0, self.job.seconds)

    def _note_metrics(self, round: int, closed: Closed) -> None:
        metrics, pictures = rows_of(closed.evaluated, self._parts, self.side.task)
        if round and metrics:
            add_metrics(self.folder.store, round, metrics, pictures)

    def _closed(self, closed: Closed) -> None:
        """Write what happened, then what the server goes on from: a kill in between
        costs one round.
        """
        self.folder.refuse_moved(self.command)
        done = closed.progress.state.round
        self.folder.store.set_meta(CLAIMS, json.dumps(self.registry.claims))
        if closed.evaluated.counts:
            self._note_metrics(done if closed.abandoned else done - 1, closed)
        self._note_ignored(closed)
        if closed.abandoned:
            refusals = closed.report.refusals
            reasons = "; ".join(f"client {r.client}: {r.reason}, {r.detail}" for r in refusals)
            text = f"round {done + 1} was abandoned: {closed.abandoned} ({reasons})"
            self.folder.store.note(text, "warning")
            return
        seconds = time.perf_counter() - self.began
        self.folder.store.record_round(record_of(closed, seconds, self.started_at, self.side.task))
        state = settle(closed.progress.state)
        progresses.save(self.folder.checkpoints, replace(closed.progress, state=state))
        self._restart_clock()

    def _note_ignored(self, closed: Closed) -> None:
        for ignored in closed.ignored:
            text = f"ignored: client {ignored.client}, {ignored.reason}, {ignored.detail}"
            self.folder.store.note(text)

    def _restart_clock(self) -> None:
        self.began = time.perf_counter()
        self.started_at = now()

    def adapt(self) -> None:
        """Give new clients their models; the trained federation stays as it is."""
        progress, skipped = progresses.load(self.folder.checkpoints, self.side)
        for reason in skipped:
            self.folder.store.note(f"passed over a checkpoint: {reason}", "warning")
        clients = [*self.job.clients]
        self.registry.wait(clients, len(clients), self.job.patience)
        join = Ask(train=False, evaluate=("validation", "test"), joining=True)
        closed = self._ask(progress, clients, join)
        for refusal in closed.report.refusals:
            text = f"client {refusal.client} got no model: {refusal.reason}, {refusal.detail}"
            self.folder.store.note(text, "warning")
        task = self.side.task
        metric = MainMetric.of(task)
        for name, counts in closed.evaluated.counts.items():
            for client, own in counts.items():
                value = metric.show(task.values(own)[metric.name]) if own[1] else "no examples"
                self.folder.store.note(Note(f"client {client} has its model: {name} {value}").text)
