"""J15: twelve learning rates of FedAvg on J1's data, ten clients a round, each a run with a folder
of its own: from the first configuration to the table, one after another and as lanes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from fedblocks.bench.jobs import J1
from fedblocks.bench.materials import materials
from fedblocks.config.code.ingredients import Ingredients
from fedblocks.config.model import ALL, Config
from fedblocks.runs.build import prepare
from fedblocks.runs.grids.lanes import run_together
from fedblocks.runs.python import config_of_objects
from fedblocks.runs.result import load_run
from fedblocks.runs.run import run
from fedblocks.runs.shelf import shared_data

GRID = "J15"
RATES = tuple(0.001 * 2**power for power in range(12))
ROUNDS = {"cuda": 100, "cpu": 3}
EXAMPLES = {"cuda": 768, "cpu": 96}  # of a client


@dataclass(frozen=True)
class GridResult:
    """Seconds of a grid of runs."""

    device: str
    runs: int
    rounds: int
    seconds_alone: float  # one after another, each with the engine that is chosen for it
    seconds_lanes: float
    cpu_alone: float  # seconds of processors, which other programs disturb less
    cpu_lanes: float
    seconds_in_rounds: float  # of the lanes
    preparation: float  # seconds that one further run took to be ready
    gain: float  # of lanes, from the first configuration to the table
    accuracies: list[float]  # the table


def measure_grid(device: str) -> dict[str, object]:
    """Both ways once: a grid is minutes on a GPU, and its parts are timed elsewhere."""
    configs = grid_configs(device)
    with TemporaryDirectory() as folder, shared_data():
        prepare(configs[0])  # data on the device, kernels chosen
        began = time.perf_counter()
        prepare(configs[1])
        preparation = time.perf_counter() - began
        folders = [Path(folder) / str(number) for number in range(2 * len(configs))]
        half = len(configs)
        alone = lambda: [run(*own) for own in zip(configs, folders[:half], strict=True)]
        seconds_alone, cpu_alone, _ = _time(alone, folders[:half])
        lanes = lambda: run_together(configs, folders[half:])
        seconds_lanes, cpu_lanes, table = _time(lanes, folders[half:])
        in_rounds = sum(load_run(path).seconds for path in folders[half:])
    result = GridResult(
        device=device,
        runs=len(configs),
        rounds=configs[0].rounds,
        seconds_alone=seconds_alone,
        seconds_lanes=seconds_lanes,
        cpu_alone=cpu_alone,
        cpu_lanes=cpu_lanes,
        seconds_in_rounds=in_rounds,
        preparation=preparation,
        gain=seconds_alone / seconds_lanes,
        accuracies=table,
    )
    return asdict(result)


def grid_configs(device: str) -> list[Config]:
    """A run for each learning rate, evaluated and stored after its last round."""
    kind = torch.device(device).type
    ready = materials(replace(J1, cohort=10, examples=EXAMPLES[kind]), device)
    data, rounds = ready.experiment.data.to("cpu"), ROUNDS[kind]
    data = replace(data, test=data.train)
    settings = {
        "cohort": len(ready.cohort),
        "device": device,
        "evaluation": {"every": rounds, "parts": ["test"]},
        "checkpoint": {"every": rounds},
    }
    methods = [replace(ready.method, lr=lr) for lr in RATES]
    ingredients = [Ingredients.of({ALL: method}, data) for method in methods]
    return [config_of_objects(own, rounds, {}, settings) for own in ingredients]


def _time(work: Callable[[], object], folders: Sequence[Path]) -> tuple[float, float, list[float]]:
    """Seconds of some runs and of the table, those of processors, and the table."""
    began, used = time.perf_counter(), _processor_seconds()
    work()
    scores = [load_run(path).accuracies("test").values() for path in folders]
    table = [sum(own) / max(len(own), 1) for own in scores]
    return time.perf_counter() - began, _processor_seconds() - used, table


def _processor_seconds() -> float:
    """Of this process and of workers that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
