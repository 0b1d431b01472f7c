"""Timing: our rounds and the hand-written loop's in turn, in one process, after one of
each to warm up.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from fedblocks.bench.materials import Materials
from fedblocks.bench.plain import PlainLoop
from fedblocks.engines.round import Engine, evaluate, run_round
from fedblocks.engines.sequential import Sequential
from fedblocks.runs.run import products_in

PLAIN = "plain loop"
SOME = 8  # clients of a round whose operations are counted
Round = Callable[[], int]  # runs one round and says on how many examples it trained


@dataclass(frozen=True)
class Contender:
    """How one way to do a job went."""

    who: str  # an engine, or "plain loop"
    examples: int  # trained on in one round
    seconds: list[float]  # wall clock of each round
    cpu_seconds: list[float]  # processor time of this process and its workers, all threads together
    # of GPU memory in these rounds; on a CPU of the process since its start, and of its workers now
    peak_bytes: int
    median_seconds: float = field(init=False)
    examples_per_second: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "median_seconds", statistics.median(self.seconds))
        object.__setattr__(self, "examples_per_second", self.examples / self.median_seconds)


@dataclass(frozen=True)
class Result:
    """One job on one engine, beside the plain loop of federated averaging on the same
    net and data.
    """

    job: str
    about: str
    method: str
    device: str
    clients: int
    cohort: int  # clients in one round
    batch: int
    start_seconds: float  # until the first round could begin
    ours: Contender
    plain: Contender
    speedup: float  # of the medians: above 1, we are faster
    cpu_speedup: float  # the same of processor time, which other programs disturb less
    flops_per_example: float  # of our round, forward and backward
    plain_flops_per_example: float  # of the plain loop's
    floor_seconds: float  # our round's operations at the measured rate of one large matrix product
    share_of_floor: float  # floor_seconds / seconds: 1 would be the speed of that product
    # seconds per operation beside the plain loop's: 1 = the same, less is better
    per_operation: float
    precision: str = "float32"  # of our products; the loop's are float32

    def table(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Operations:
    """Floating-point operations: how many a second, and how many on each example."""

    rate: float  # a second, of one large matrix product
    ours: float
    plain: float  # of the plain loop


def measure(
    materials: Materials,
    engines: Sequence[Engine],
    repeat: int,
    start_seconds: float,
    precision: str = "float32",
) -> list[Result]:
    """One result for each engine; all of them and the loop take turns, so that a busy
    machine disturbs all alike.
    """
    device = materials.experiment.data.device
    plain = PlainLoop(materials)
    rounds: dict[str, Round] = {PLAIN: plain.round}
    for engine in engines:
        rounds[engine.name] = round_in(precision, our_round(materials, engine))
    sides = take_turns(rounds, repeat, device)
    operations = Operations(matmul_rate(device), our_flops(materials), loop_flops(plain))
    results = [
        _result(materials, sides[engine.name], sides[PLAIN], start_seconds, operations)
        for engine in engines
    ]
    return [replace(result, precision=precision) for result in results]


def round_in(precision: str, round: Round) -> Round:
    """A round whose products are rounded as a configuration's `precision` says."""

    def rounded() -> int:
        with products_in(precision):
            return round()

    return rounded


def our_round(materials: Materials, engine: Engine) -> Round:
    """Rounds of an engine, one after the other."""
    state = materials.start

    def round() -> int:
        nonlocal state
        state, report = run_round(
            materials.experiment, state, materials.cohort, engine, coming=materials.cohort
        )
        if materials.job.tests:
            evaluate(materials.experiment, state, materials.cohort, engine)
        return sum(len(materials.experiment.data.train[client]) for client in report.clients)

    return round


def take_turns(rounds: dict[str, Round], repeat: int, device: torch.device) -> dict[str, Contender]:
    """Each way to do a job once for warming up, ours three times on a GPU; then all of
    them again and again.
    """
    examples = {who: round() for who, round in rounds.items()}
    for who in rounds if device.type == "cuda" else ():
        for _ in range(0 if who == PLAIN else 2):  # the first rounds record graphs
            rounds[who]()
    timings: dict[str, list[tuple[float, float, int]]] = {who: [] for who in rounds}
    for _ in range(repeat):
        for who, round in rounds.items():
            timings[who].append(_time(round, device))
    sides: dict[str, Contender] = {}
    for who, of_rounds in timings.items():
        seconds = [wall for wall, _, _ in of_rounds]
        cpu_seconds = [processor for _, processor, _ in of_rounds]
        peak = max(peak for _, _, peak in of_rounds)
        sides[who] = Contender(who, examples[who], seconds, cpu_seconds, peak)
    return sides


def matmul_rate(device: torch.device, size: int = 1024) -> float:
    """Floating-point operations a second of one large matrix product, the best of some."""
    a = torch.ones(size, size, device=device)
    times = [_time(lambda: len(a @ a), device)[0] for _ in range(8)]
    return float(2 * size**3 / min(times[1:]))


def our_flops(materials: Materials) -> float:
    """Operations of local training on each example, one client after another; some
    methods read other clients.
    """
    ((group, ids),) = materials.experiment.members(materials.cohort[:SOME]).items()
    experiment = materials.experiment
    job = experiment.job(group, ids, experiment.start(), materials.method.phases(), True, "train")
    with FlopCounterMode(display=False) as counter:
        Sequential(replay=False).train(job)
    return float(counter.get_total_flops() / (len(ids) * materials.job.examples))


def loop_flops(plain: PlainLoop) -> float:
    """Operations of the hand-written loop on each example."""
    with FlopCounterMode(display=False) as counter:
        plain.visit(plain.train[0])
    return float(counter.get_total_flops() / len(plain.train[0]))


def _time(round: Round, device: torch.device) -> tuple[float, float, int]:
    """Wall-clock and processor seconds, and peak memory."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        torch.cuda.synchronize(device)
    wall = time.perf_counter()
    processor = _processor_seconds()
    round()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - wall, _processor_seconds() - processor, _peak(device)


def _processor_seconds() -> float:
    """Of this process and of the workers that it has."""
    lines = [Path(f"/proc/{pid}/stat").read_text() for pid in _workers()]
    ticks = [int(tick) for line in lines for tick in line.rpartition(")")[2].split()[11:13]]
    return time.process_time() + sum(ticks) / os.sysconf("SC_CLK_TCK")


def _workers() -> list[int]:
    pids = [child.pid for child in multiprocessing.active_children()]
    return [pid for pid in pids if pid is not None and Path(f"/proc/{pid}/stat").exists()]


def _peak(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    unit = 1 if sys.platform == "darwin" else 1024
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return own + sum(_own_bytes(pid) for pid in _workers())


def _own_bytes(pid: int) -> int:
    """The memory of a worker, its share of what it has in common with others included."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def _result(
    materials: Materials,
    ours: Contender,
    plain: Contender,
    start_seconds: float,
    operations: Operations,
) -> Result:
    job = materials.job
    processor = statistics.median(ours.cpu_seconds)
    seconds_per_operation = ours.median_seconds / operations.ours
    floor = operations.ours * ours.examples / operations.rate
    return Result(
        job=job.name,
        about=job.about,
        method=job.method,
        device=materials.experiment.data.device.type,
        clients=job.clients,
        cohort=job.cohort,
        batch=job.batch,
        start_seconds=start_seconds,
        ours=ours,
        plain=plain,
        speedup=plain.median_seconds / ours.median_seconds,
        cpu_speedup=statistics.median(plain.cpu_seconds) / max(processor, 1e-9),
        flops_per_example=operations.ours,
        plain_flops_per_example=operations.plain,
        floor_seconds=floor,
        share_of_floor=floor / ours.median_seconds,
        per_operation=seconds_per_operation / (plain.median_seconds / operations.plain),
    )
