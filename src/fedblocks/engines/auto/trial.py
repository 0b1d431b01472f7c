"""Which engine is fastest on this CPU: tried on a few steps, once, and remembered."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from hashlib import sha256
from math import ceil
from pathlib import Path
from statistics import mean

import torch

import fedblocks.core
from fedblocks.core.net import Net
from fedblocks.core.precision import wants_half
from fedblocks.core.state import State
from fedblocks.engines.auto.measured import Measured, keep, recall
from fedblocks.engines.auto.others import Others
from fedblocks.engines.job import Job
from fedblocks.engines.processes.engine import Processes
from fedblocks.engines.processes.workers import available, cores
from fedblocks.engines.round import Engine, Experiment
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised

CLIENTS = 8  # that are tried; more of them, and of their steps, if the net is small
STEPS = 4
ENOUGH = 0.25  # seconds of clients one after another, before there are more steps of each
LONG = 1.0  # seconds of one client's trial: a net that no stack of clients makes faster on a CPU
TURNS = (4, 8)  # that engines get: at least, and at most
SHORT = 4.0  # seconds after which no further turn begins
BEHIND = 1.5  # times the seconds of the fastest, in two turns or a long one: it gets no more
SPARE = 0.5  # cores: what a system always does besides
# how many times as fast it must be. Workers may be a little slower: threads that share one client
# suffer more from other programs (docs/speed.md)
BETTER = {"vectorised": 1.1, "processes": 0.95, "sequential": 1.0}


@dataclass(frozen=True)
class TrialPlan:
    """What is to be decided: a cohort of an experiment on some cores."""

    experiment: Experiment
    clients: Sequence[int]  # of which cohorts are drawn
    cohort: int
    chunk: int = 64
    processes: int = 1  # worker processes that may be used
    threads: int = 1  # of the other engines

    @property
    def group(self) -> str:
        """The clients with the largest net decide."""
        methods = self.experiment.methods
        return max(methods, key=lambda name: Net.size(methods[name].net))

    @cached_property
    def start(self) -> State:
        """What is sent to clients in a trial."""
        return self.experiment.start()

    def engines(self) -> dict[str, Engine]:
        """The engines that could do it."""
        possible: dict[str, Engine] = {"sequential": Sequential()}
        if not self.experiment.methods[self.group].net.unmappable:
            possible["vectorised"] = Vectorised(chunk=self.chunk)
        on_cpu = self.experiment.data.device.type == "cpu"
        if on_cpu and self.processes > 1 and self.cohort > 1 and available():
            possible["processes"] = Processes(count=min(self.processes, self.cohort))
        return possible

    def key(self) -> str:
        """Everything that the answer depends on."""
        method = self.experiment.methods[self.group]
        shapes = [[name, list(value.shape)] for name, value in method.net.init(0).items()]
        inputs = list(self.experiment.data.x.shape[1:])
        about = [type(method).__name__, method.batch_size, inputs, shapes]
        machine = [torch.__version__, source_digest(), self.threads, cores(), self.processes]
        if self.experiment.data.device.type == "cuda":
            machine.append(torch.cuda.get_device_name(self.experiment.data.device))
        everything = json.dumps([*about, self.cohort, self.chunk, *machine, wants_half()])
        return sha256(everything.encode()).hexdigest()[:32]


@cache
def source_digest() -> str:
    """What the code that engines run is: another version may be faster another way."""
    digest = sha256()
    package = Path(fedblocks.core.__file__ or "").parents[1]
    for folder in ("core", "engines", "kernels", "layers"):
        for path in sorted((package / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def planned(plan: TrialPlan) -> tuple[Engine, str]:
    """The engine that was fastest, and by how much."""
    measured = recall(plan.key()) or keep(plan.key(), _measure(plan))
    engines = plan.engines()
    seconds_of = measured.seconds
    best = fastest({name: seconds for name, seconds in seconds_of.items() if name in engines})
    why = f"{list_seconds(seconds_of)} for a few steps of this net{measured.when}"
    return engines[best], why


def _measure(plan: TrialPlan) -> Measured:
    others = Others()
    seconds = try_out(plan)
    left = (os.cpu_count() or 1) - max(plan.processes, plan.threads)
    return Measured(seconds, others.cores() > left + SPARE)


def fastest(seconds: Mapping[str, float]) -> str:
    """One client after another, unless another way is faster; clearly so if its results
    differ in last bits.
    """
    return min(seconds, key=lambda name: (seconds[name] * BETTER[name], name != "sequential"))


def try_out(plan: TrialPlan) -> dict[str, float]:
    """Seconds that each engine takes for the same few steps."""
    before = torch.get_num_threads()
    torch.set_num_threads(plan.threads)
    try:
        return _try_engines(plan, plan.engines())
    finally:
        torch.set_num_threads(before)


def _try_engines(plan: TrialPlan, engines: dict[str, Engine]) -> dict[str, float]:
    first = min(measure_seconds(engines["sequential"], trial_job(plan, 1)) for _ in range(2))
    if first > LONG:
        engines.pop("vectorised", None)
    # a stack of few small nets says too little
    many = max(CLIENTS, min(plan.cohort, int(ENOUGH / max(first, 1e-9))))
    # and so do few steps: each client has a price
    steps = min(max(int(STEPS * 2 * ENOUGH / max(first * many, 1e-9)), STEPS), 3 * STEPS)
    count = plan.processes if first > LONG else many
    seconds = _in_turn(engines, lambda turn: trial_job(plan, count, steps, turn))
    for engine in engines.values():
        if isinstance(engine, Processes):
            engine.close()
    return seconds


def _in_turn(engines: Mapping[str, Engine], job_of: Callable[[int], Job]) -> dict[str, float]:
    """The fewest seconds of each, for other programs only add to them; in turn, so that a
    busy machine disturbs all alike. Each turn is a round, as steps are recorded anew in each.
    """
    trials: dict[str, list[float]] = {name: [] for name in engines}
    for turn in range(TURNS[1]):
        if turn >= TURNS[0] and sum(map(sum, trials.values())) > SHORT:
            break
        job = job_of(turn)
        fewest = {name: min(seconds, default=0.0) for name, seconds in trials.items()}
        best = min(fewest.values())
        for name, seconds in trials.items():
            # the first turn has the start of workers in it, which never takes so long
            is_new = turn < 2 and fewest[name] < LONG
            if is_new or fewest[name] <= BEHIND * best:
                seconds.append(measure_seconds(engines[name], job))
    return {name: min(seconds) for name, seconds in trials.items()}


def measure_seconds(engine: Engine, job: Job) -> float:
    """The seconds of one trial."""
    began = time.perf_counter()
    engine.train(job)
    return time.perf_counter() - began


def trial_job(plan: TrialPlan, count: int, steps: int = STEPS, turn: int = 0) -> Job:
    """The first steps of some clients in a round; of clients with few examples, as many as they do
    on average.
    """
    experiment, group = plan.experiment, plan.group
    members = experiment.members(plan.clients)[group]
    clients = [client for client in members if len(experiment.data.train[client])]
    some = clients[:count] or members[:1]
    state = replace(plan.start, round=turn)
    phases = experiment.methods[group].phases()
    whole = experiment.job(group, some, state, phases, True, "train").batches
    own = [ceil(mean(len(batches[p]) for batches in whole)) for p in range(len(phases))]
    few = [replace(phase, steps=min(steps, n)) for phase, n in zip(phases, own, strict=True)]
    return experiment.job(group, some, state, few, True, "train")


def list_seconds(seconds: Mapping[str, float]) -> str:
    """The fastest first."""
    fastest_first = sorted(seconds.items(), key=lambda item: item[1])
    return ", ".join(f"{name} {1000 * value:.0f} ms" for name, value in fastest_first)
