"""Which engine is fastest on this GPU: a stack of clients, unless one client keeps it busy."""

from __future__ import annotations

import time

import torch

from fedblocks.engines.auto.measured import Measured, keep, recall
from fedblocks.engines.auto.trial import STEPS, TrialPlan, list_seconds, trial_job
from fedblocks.engines.job import Job
from fedblocks.engines.round import Engine
from fedblocks.kernels.device_errors import shortages_alike

CLIENTS = 8  # that are tried
CLEARLY = 1.1  # times as fast as the stack must one client after another be


def planned_on_gpu(plan: TrialPlan) -> tuple[Engine, str]:
    """The engine that was faster in a trial of about a second, and by how much."""
    measured = recall(plan.key()) or keep(plan.key(), Measured(try_on_gpu(plan)))
    seconds, engines = measured.seconds, plan.engines()
    stacked = seconds.get("vectorised", float("inf"))
    best = "sequential" if CLEARLY * seconds["sequential"] < stacked else "vectorised"
    why = f"{list_seconds(seconds)} for a few steps of this net{measured.when}"
    return engines[best], why


def try_on_gpu(plan: TrialPlan) -> dict[str, float]:
    """Seconds that each engine takes for the same few steps; a stack that does not fit has none."""
    job = trial_job(plan, min(CLIENTS, plan.cohort), STEPS)
    seconds: dict[str, float] = {}
    for name, engine in plan.engines().items():
        try:
            with shortages_alike():
                engine.train(job)  # kernels are compiled, and steps recorded
                seconds[name] = _seconds(engine, job)
        except torch.OutOfMemoryError:
            if name == "sequential":
                raise
    return seconds


def _seconds(engine: Engine, job: Job) -> float:
    """Until the device has done it."""
    _wait(job.device)
    began = time.perf_counter()
    engine.train(job)
    _wait(job.device)
    return time.perf_counter() - began


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
