"""All jobs that were asked for, one after the other, with what they ran on."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from fedblocks.bench.jobs import BenchJob
from fedblocks.bench.materials import Materials, materials
from fedblocks.bench.measure import Result, measure
from fedblocks.core.errors import UserError
from fedblocks.engines.auto.choose import choose
from fedblocks.engines.auto.trial import TrialPlan, planned
from fedblocks.engines.processes.engine import Processes
from fedblocks.engines.processes.workers import cores
from fedblocks.engines.round import Engine
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.runs.storage.environment import environment, now

ENGINES: dict[str, Callable[[], Engine]] = {
    "sequential": Sequential,
    "vectorised": Vectorised,
    "processes": Processes,
}
AUTO = "auto"


# what a job gave, and all that is known so far, for JSON
Tell = Callable[[Sequence[Result], dict[str, Any]], None]


def run_jobs(
    jobs: Sequence[BenchJob],
    device: str,
    repeat: int,
    engines: Sequence[str],
    tell: Tell,
    precision: str = "float32",
) -> dict[str, Any]:
    """Time every job; `tell` hears of each at once. What a method refuses is listed
    under "skipped".
    """
    for name in engines:
        if name not in (AUTO, *ENGINES):
            raise UserError(f'there is no engine "{name}"', f"use {', '.join([AUTO, *ENGINES])}")
    results: list[Result] = []
    skipped: dict[str, str] = {}
    choices: dict[str, str] = {}
    for job in jobs:
        try:
            of_job = run_job(job, device, repeat, engines, precision, choices)
        except UserError as error:  # a method that the job's net or data do not suit
            skipped[job.name] = error.message
            continue
        results += of_job
        tell(of_job, _table(results, skipped, choices))
    return _table(results, skipped, choices)


def _table(
    results: Sequence[Result], skipped: dict[str, str], choices: dict[str, str]
) -> dict[str, Any]:
    return {
        "at": now(),
        "env": environment(),
        "load": os.getloadavg()[0],  # of the last minute: others disturb
        "results": [result.table() for result in results],
        "skipped": skipped,
        "choices": choices,
    }


def run_job(
    job: BenchJob,
    device: str,
    repeat: int,
    engines: Sequence[str],
    precision: str = "float32",
    choices: dict[str, str] | None = None,
) -> list[Result]:
    """Time one job on some engines; "auto" is the one that a run would choose, and `choices` is
    told why.
    """
    began = time.perf_counter()
    ready = materials(job, device)
    ready.start  # noqa: B018 - made when it is first asked for
    start_seconds = time.perf_counter() - began
    chosen, why = _engines(ready, engines)
    if choices is not None and why:
        choices[job.name] = why
    try:
        return measure(ready, chosen, repeat, start_seconds, precision)
    finally:
        for engine in chosen:
            if isinstance(engine, Processes):
                engine.close()


def write(path: Path, results: dict[str, Any]) -> None:
    """Store results as JSON."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(results, indent=2) + "\n")
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror}", "choose another file for --out"
        ) from error


def _engines(ready: Materials, names: Sequence[str]) -> tuple[list[Engine], str]:
    """Each engine once, and why "auto" is one of them; nothing if it was not asked for."""
    by_name: dict[str, Engine] = {}
    reason = ""
    for name in names:
        engine, why = (ENGINES[name](), "") if name != AUTO else _choose(ready)
        by_name.setdefault(engine.name, engine)
        reason = f"{engine.name}: {why}" if why else reason
    return list(by_name.values()), reason


def _choose(ready: Materials) -> tuple[Engine, str]:
    device = ready.experiment.data.device
    cohort = len(ready.cohort)
    if device.type != "cpu":
        return choose(ready.method.net, device, cohort)
    plan = TrialPlan(
        ready.experiment, ready.cohort, cohort, processes=cores(), threads=torch.get_num_threads()
    )
    return planned(plan)
