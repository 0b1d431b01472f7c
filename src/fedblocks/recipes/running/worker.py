"""A process that carries out runs: batches of jobs come in as lines of JSON, answers go out as
lines of JSON.

`python -m fedblocks.recipes.running.worker`. A run that was stopped before goes on; a finished one
is only measured. Runs that can be lanes of one are, where that is asked for; the others follow each
other.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fedblocks.config.model import Config
from fedblocks.core.errors import Interrupted, UserError
from fedblocks.recipes.measures import Numbers, measure, measure_together
from fedblocks.recipes.running.gpu_share import give_back, take_share
from fedblocks.recipes.running.longer import lengthen
from fedblocks.recipes.running.provenance import code_version
from fedblocks.recipes.running.results import WARNING
from fedblocks.runs.build import Prepared, prepare
from fedblocks.runs.grids.lanes import Waiting, fits, is_mapped, run_queue
from fedblocks.runs.progress import OnRound, RoundDone
from fedblocks.runs.result import RunResult, load_run
from fedblocks.runs.run import resume, run
from fedblocks.runs.shelf import shared_data
from fedblocks.runs.storage.folder import CONFIG, RunFolder

Answer = dict[str, Any]
Batch = dict[str, Any]  # jobs; seconds that they may take; whether they may be lanes
STOPPED: Answer = {"stopped": True}


@dataclass(frozen=True, eq=False)
class WorkerJob:
    """One run and what is read off it."""

    folder: Path
    config: Config
    measure: dict[str, Any]
    part: Any
    shorter: Path | None  # of a run that differs in having fewer rounds, to go on from

    @staticmethod
    def of(table: dict[str, Any]) -> WorkerJob:
        shorter = Path(table["shorter"]) if table.get("shorter") else None
        config = Config.of(table["config"])
        return WorkerJob(Path(table["folder"]), config, table["measure"], table["part"], shorter)

    @property
    def is_done(self) -> bool:
        return (self.folder / CONFIG).exists() and load_run(self.folder).status == "finished"


def answers(batch: Batch) -> list[Answer]:
    """The numbers of each job; or that its time was up, or what went wrong."""
    jobs: dict[int, WorkerJob] = {}
    by_number: dict[int, Answer] = {}
    for number, table in enumerate(batch["jobs"]):
        job = _safely(partial(_ready, table))
        (jobs if isinstance(job, WorkerJob) else by_number)[number] = job
    on_round, is_late = _watch(batch["seconds"])
    # one for each run
    firsts = list({job.folder: job for job in reversed(jobs.values())}.values())[::-1]
    one_by_one: list[list[Member]] = [[(job, None)] for job in firsts]
    turns = companies(firsts) if batch["lanes"] else one_by_one
    for turn, members in enumerate(turns):
        company = [job for job, _ in members]
        missed = STOPPED if turn and is_late() else _safely(partial(_train, members, on_round))
        folders = {job.folder for job in company}
        own = {number: job for number, job in jobs.items() if job.folder in folders}
        by_number |= dict.fromkeys(own, missed) if missed else _measure(own)
    return [by_number[number] for number in range(len(batch["jobs"]))]


def _ready(table: dict[str, Any]) -> WorkerJob:
    job = WorkerJob.of(table)
    if job.shorter is not None:
        lengthen(job.shorter, job.folder, job.config)
    return job


def _safely(step: Callable[[], Any]) -> Any:
    """What a step gives; if it fails that is an answer, for one cell that fails must
    not take the others with it.
    """
    try:
        return step()
    except Interrupted:
        return STOPPED
    except UserError as error:
        return {"error": error.message, "fix": error.fix}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", "fix": ""}


def _watch(seconds: float | None) -> tuple[OnRound, Callable[[], bool]]:
    """Who ends a run when the time is up, or when nobody waits for it any more."""
    parent = os.getppid()
    latest = float("inf") if seconds is None else time.monotonic() + seconds

    def is_late() -> bool:
        return time.monotonic() > latest or os.getppid() != parent

    def on_round(done: RoundDone) -> None:
        if done.round < done.rounds and is_late():
            raise KeyboardInterrupt

    return on_round, is_late


Member = tuple[WorkerJob, Prepared | None]  # prepared: could be a lane


def companies(jobs: Sequence[WorkerJob]) -> list[list[Member]]:
    """Jobs whose runs can be lanes of one, together; at whatever rounds they stand."""
    groups: list[list[Member]] = []
    for job in jobs:
        prepared = None if job.is_done else _safely(partial(prepare, job.config))
        if not (isinstance(prepared, Prepared) and is_mapped(prepared)):
            groups.append([(job, None)])
            continue
        alike = (own for own in groups if own[0][1] and fits([own[0][1], prepared]))
        group = next(alike, None)
        if group is None:
            groups.append([(job, prepared)])
        else:
            group.append((job, prepared))
    return groups


def _train(members: Sequence[Member], on_round: OnRound) -> None:
    """Carry out the runs of some jobs; if they cannot be lanes after all, one after the other."""
    if len(members) > 1:
        try:
            run_queue([Waiting(own, job.folder) for job, own in members if own], on_round)
            return
        except Interrupted:
            raise
        except Exception as error:
            print(f"not as lanes: {type(error).__name__}: {error}", file=sys.stderr)
    for job, _ in members:
        if not (job.folder / CONFIG).exists():
            run(job.config, job.folder, on_round)
        elif not job.is_done:
            resume(job.folder, on_round)


def _measure(jobs: Mapping[int, WorkerJob]) -> dict[int, Answer]:
    """What is read off finished runs; the same measure of several runs at once."""
    alike: dict[str, list[int]] = {}
    for number, job in jobs.items():
        alike.setdefault(json.dumps([job.measure, job.part]), []).append(number)
    by_number: dict[int, Answer] = {}
    for numbers in alike.values():
        first = jobs[numbers[0]]
        runs = [load_run(jobs[number].folder) for number in numbers]
        together = None
        if len(runs) > 1:
            together = _safely(partial(measure_together, runs, first.measure, first.part))
        for turn, (number, one) in enumerate(zip(numbers, runs, strict=True)):
            values = together[turn] if isinstance(together, list) else None
            by_number[number] = _safely(partial(_answer, one, jobs[number], values))
    return by_number


def _answer(run: RunResult, job: WorkerJob, numbers: Numbers | None) -> Answer:
    numbers = measure(run, job.measure, job.part) if numbers is None else numbers
    with RunFolder.open(run.folder) as folder:
        ran_on = folder.environment
        partition = folder.store.meta("federation") or ""
    warning = run.refused().warning
    return {
        **({WARNING: warning} if warning else {}),
        "numbers": numbers,
        "rounds": run.rounds,
        "seconds": round(run.seconds, 1),
        "partition": partition,
        "lanes": run.lanes,
        "device": ran_on["devices"][0],
        "processor": f"{ran_on['cpu']}, {ran_on.get('instructions', 'unknown')}",
        "torch": ran_on["versions"]["torch"],
        "code": code_version(),
    }


def serve() -> None:
    """Answer one batch after the other until there are no more; whatever a run prints
    goes to the error stream.
    """
    channel = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    take_share()
    with shared_data():
        for line in sys.stdin:
            channel.write(json.dumps(answers(json.loads(line))) + "\n")
            channel.flush()
            give_back()


if __name__ == "__main__":
    serve()
