"""The device and the engine of a run, and why these."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedblocks.config.model import MOST_PROCESSES, Config
from fedblocks.core.net import Net
from fedblocks.engines.auto.choose import choose
from fedblocks.engines.auto.gpu_trial import planned_on_gpu
from fedblocks.engines.auto.trial import TrialPlan, planned
from fedblocks.engines.devices import find_device
from fedblocks.engines.memory import bytes_of, measure_need
from fedblocks.engines.processes.engine import Processes
from fedblocks.engines.processes.workers import cores
from fedblocks.engines.round import Engine, Experiment
from fedblocks.engines.sequential import Sequential
from fedblocks.engines.vectorised import Vectorised
from fedblocks.runs.federations import placed

# floating-point operations of a run, about half a minute: below, engines are not tried
WORTH_A_TRIAL = 2e11
# the same on a GPU; in short runs of small nets a stack was faster in all our trials
WORTH_ON_GPU = 1e14


def device_of(config: Config) -> tuple[torch.device, str]:
    """The device, and why this one."""
    if config.device == "auto":
        if torch.cuda.is_available() and torch.cuda.device_count():
            return torch.device("cuda"), "a GPU is there"
        return torch.device("cpu"), "torch finds no GPU"
    with placed(config, ("device",)):
        device = find_device(config.device)
    return device, "as configured" if device.index is None else f"as configured, {device}"


def engine_of(
    config: Config,
    experiment: Experiment,
    cohort: int,
    device: torch.device,
    clients: Sequence[int],
) -> tuple[Engine, str]:
    """The engine, and why this one."""
    chunk = _chunk(config, experiment, cohort)
    processes = config.processes or min(config.threads or cores(), MOST_PROCESSES)
    if config.engine == "sequential":
        return Sequential(), "as configured"
    if config.engine == "vectorised":
        return Vectorised(chunk=chunk), "as configured"
    if config.engine == "processes":
        return Processes(count=processes), f"as configured, {processes} of them"
    largest = max((method.net for method in experiment.methods.values()), key=Net.size)
    on_gpu = device.type != "cpu"
    is_clear = on_gpu and bool(largest.unmappable)
    if is_clear or _is_short(config, experiment, cohort, WORTH_ON_GPU if on_gpu else WORTH_A_TRIAL):
        return choose(largest, device, cohort // len(experiment.methods), chunk)
    threads = config.threads or torch.get_num_threads()
    plan = TrialPlan(experiment, clients, cohort, chunk, processes, threads)
    return planned_on_gpu(plan) if on_gpu else planned(plan)


def _is_short(config: Config, experiment: Experiment, cohort: int, worth: float) -> bool:
    """Whether a run takes seconds, so that trying engines would not pay."""
    method = max(experiment.methods.values(), key=lambda method: Net.size(method.net))
    epochs = sum(phase.epochs for phase in method.phases())
    examples = config.rounds * cohort * epochs * float(experiment.data.train.sizes.mean())
    return 6 * examples * Net.size(method.net) < worth


def _chunk(config: Config, experiment: Experiment, cohort: int) -> int:
    """Clients that are trained at once: as configured, or as many as the memory allows."""
    if config.memory is None:
        return config.chunk
    with placed(config, ("memory",)):
        memory = bytes_of(config.memory)
        chunks = [
            measure_need(experiment, group, _parts(config)).chunk(memory, cohort, config.chunk)
            for group in experiment.members(range(experiment.data.clients))
            if not experiment.methods[group].net.unmappable
        ]
        return min(chunks, default=config.chunk)


def _parts(config: Config) -> list[str]:
    return [*config.evaluation.parts] or ["test"]
