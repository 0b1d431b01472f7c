"""From a configuration to all that a run needs: data, nets, methods, engine; checked
before the first round.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from fedblocks.config.model import ALL, Config
from fedblocks.core.augmentations import try_augmentations
from fedblocks.core.blocks import Pool
from fedblocks.core.client_names import client_numbers
from fedblocks.core.errors import UserError, count_of
from fedblocks.core.forward_errors import tell_forward_errors
from fedblocks.core.hooks import ask_sentences
from fedblocks.core.method import Method
from fedblocks.core.precision import half_precision, refuse_half, refuse_half_parameters
from fedblocks.data import Federation
from fedblocks.engines.net_check.check import EXAMPLES, check_before_run
from fedblocks.engines.net_check.report import precision_note
from fedblocks.engines.rehearsal import rehearse
from fedblocks.engines.round import Engine, Experiment
from fedblocks.runs.batches import batches_of, sizes_of_run
from fedblocks.runs.engine_choice import device_of, engine_of
from fedblocks.runs.experiment import experiment_of
from fedblocks.runs.federations import hold_out, idle_seed, placed
from fedblocks.runs.heads import head_notes
from fedblocks.runs.patience import check_stopping
from fedblocks.runs.sampling import Sampling, sampling_of
from fedblocks.runs.shelf import hash_of, known_federation
from fedblocks.runs.starts import start_notes
from fedblocks.runs.storage.record import Note
from fedblocks.runs.trials import try_task


@dataclass(frozen=True, eq=False)
class Prepared:
    """A run that could start."""

    config: Config
    experiment: Experiment
    clients: list[int]  # that are trained on
    unseen: list[int]  # that never are
    cohort: int  # clients a round
    engine: Engine
    notes: list[Note]  # what a reader of the results should know
    sampling: Sampling

    @property
    def hash(self) -> str:
        """The SHA-256 of the data."""
        return hash_of(self.experiment.data)


@tell_forward_errors()
def prepare(config: Config, federation: Federation | None = None) -> Prepared:
    """Make everything that a configuration describes, or say what does not fit; data
    that are known are not read.
    """
    device, why_device = device_of(config)
    if federation is None:
        federation, on_device = known_federation(config, device)
    else:
        on_device = federation.to(device)
    clients, unseen = hold_out(config, federation)
    check_stopping(config, federation)
    _check_faults(config, federation)
    experiment = experiment_of(config, on_device, unseen)
    cohort, remarks = look_over(config, experiment, federation, len(clients))
    with placed(config, ("method",)):
        idle = rehearse(experiment, clients[:cohort], config.engine in ("auto", "vectorised"))
    with half_precision(_is_half(config, experiment, device)):
        engine, why_engine = engine_of(config, experiment, cohort, device, clients)
    notes = [
        Note(f"device {device.type}: {why_device}"),
        Note(f"engine {engine.name}: {why_engine}"),
        *remarks,
        *(Note(text, "warning") for text in idle),
    ]
    sampling = sampling_of(config, federation, clients, cohort)
    return Prepared(config, experiment, clients, unseen, cohort, engine, notes, sampling)


def _is_half(config: Config, experiment: Experiment, device: torch.device) -> bool:
    if config.precision != "bf16":
        return False
    with placed(config, ("precision",)):
        refuse_half([method.net.dtype for method in experiment.methods.values()], device)
    return True


def _check_faults(config: Config, federation: Federation) -> None:
    if config.faults is not None and config.faults.clients is not None:
        with placed(config, ("faults", "clients")):
            client_numbers(config.faults.clients, federation.names)


def look_over(
    config: Config, experiment: Experiment, federation: Federation, clients: int
) -> tuple[int, list[Note]]:
    """Refuse what cannot be trained; the clients of a round, and what to know of the run."""
    checks = _check_nets(config, experiment)
    with placed(config, ("method",)):
        for method in experiment.methods.values():
            try_augmentations(method.augment or (), experiment.data.x)
        experiment.start()  # blocks that cannot be shared show here
    with placed(config, ("task",)):
        # the nets of all groups have outputs of one shape
        net = next(iter(experiment.methods.values())).net
        checks += try_task(net, experiment.data, sizes_of_run(experiment))
    methods = experiment.methods.values()
    tags = _tags(federation)
    remarks = [text for method in methods for text in ask_sentences(method, "remarks", tags)]
    spare = [text for method in methods for text in _spare_slots(method, clients)]
    warnings = (*federation.warnings(), *idle_seed(config), *remarks, *spare, *checks)
    notes = [Note(text, "warning") for text in warnings]
    nets = [method.net for method in methods]
    of_nets = [*head_notes(nets, first_inputs(federation, 2)), *start_notes(nets)]
    return _cohort(config, clients), [*of_nets, *_large_batches(experiment, federation), *notes]


def _check_nets(config: Config, experiment: Experiment) -> list[str]:
    """Refuse a user's module that would not train as in plain PyTorch; what a reader
    should know of the others.
    """
    warnings = []
    examples = first_inputs(experiment.data, EXAMPLES)
    for group, method in experiment.methods.items():
        with placed(config, ("net",) if group == ALL else ("groups", group, "net")):
            refuse_half_parameters(method.net.dtype)
            vectorised = config.engine == "vectorised"
            batches = partial(batches_of, experiment, group)
            warnings.append(check_before_run(method.net, examples, vectorised, batches))
            warnings.append(precision_note(method.net))
    return [text for text in warnings if text]


def first_inputs(federation: Federation, most: int) -> torch.Tensor:
    """Some inputs, on which nets are tried."""
    return federation.inputs(range(min(most, len(federation.x))))


def _spare_slots(method: Method, clients: int) -> list[str]:
    """More components, clusters or branches than clients: allowed, but hardly meant."""
    for name, block in method.blocks().items():
        if isinstance(block, Pool) and block.size > clients:
            slots = f'block "{name}" has {block.size} slots for {count_of(clients, "client")}'
            return [f"{slots}; some may never be used"]
    return []


def _tags(federation: Federation) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.array(values)) for name, values in federation.tags.items()}


def _large_batches(experiment: Experiment, federation: Federation) -> list[Note]:
    """A note where no client has rows for one batch: each then trains on all its rows at once."""
    # 0: the clients of a real federation hold their rows
    largest = int(federation.train.sizes.max())
    smallest = min(method.batch_size for method in experiment.methods.values())
    if not 0 < largest < smallest:
        return []
    most = count_of(largest, "training row")
    text = f"batch_size = {smallest}, but no client has more than {most}"
    return [Note(f"{text}: each client trains on all its rows at once")]


def _cohort(config: Config, clients: int) -> int:
    size = config.cohort.size
    if isinstance(size, float):
        return max(1, round(size * clients))
    if size > clients:
        with placed(config, ("cohort", "size")):
            message = f"{size} clients a round, but there are {clients} to train on"
            raise UserError(message, f"use at most {clients}")
    return size
