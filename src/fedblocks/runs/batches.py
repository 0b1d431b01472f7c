"""How large the batches of a run are, and examples to try such batches with."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from fedblocks.data import Federation
from fedblocks.engines.batching import sizes_of_batches
from fedblocks.engines.net_check.sizes import USUAL, Batches
from fedblocks.engines.round import Experiment
from fedblocks.engines.scoring import CHUNK, chunk_of

NUMBERS = 20_000_000  # of inputs that are read for that


def batches_of(experiment: Experiment, group: str) -> Batches:
    """Those of a group's clients, with examples of the one who has most."""
    data, sizes = experiment.data, _sizes_in(experiment, group)
    most = max(USUAL[-1], NUMBERS // max(1, math.prod(data.x.shape[1:])))
    trained = {min(size, most) for size in trained_sizes(experiment, group)}
    evaluated = trained | {min(size, most) for size in evaluated_sizes(data)}
    rows = first_rows(data, int(sizes.argmax()), max(evaluated))
    return Batches.of(data.inputs(rows), trained, evaluated)


def sizes_of_run(experiment: Experiment) -> set[int]:
    """Of all groups, in training and in evaluation."""
    trained = [trained_sizes(experiment, group) for group in experiment.methods]
    return evaluated_sizes(experiment.data).union(*trained)


def trained_sizes(experiment: Experiment, group: str) -> set[int]:
    """How many examples a group's batches have; larger ones count as those of an evaluation."""
    method = experiment.methods[group]
    counts = {int(count) for count in np.unique(_sizes_in(experiment, group))} - {0}
    # where clients hold their rows themselves, nobody here knows how many they are
    sizes = sizes_of_batches(method, counts) if counts else {*USUAL, method.batch_size}
    return {min(size, CHUNK) for size in sizes}


def evaluated_sizes(data: Federation) -> set[int]:
    """How many examples a pass of an evaluation has at most."""
    return {min(chunk_of(data), int(part.sizes.max())) for part in data.parts.values()} - {0}


def _sizes_in(experiment: Experiment, group: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """How many training rows each client has; others than the group's count as empty."""
    sizes = experiment.data.train.sizes
    if not experiment.groups:
        return sizes
    return np.where(np.array(experiment.groups) == group, sizes, 0)


def first_rows(data: Federation, client: int, most: int) -> list[int]:
    """The first training rows of a client; if there are none, some of anybody."""
    rows = [int(row) for row in data.train[client][:most]]
    return rows or list(range(min(2, len(data.x))))


def targets_of(data: Federation, client: int, most: int) -> Tensor:
    """What these have as targets, in turn where they are few."""
    rows = np.resize(first_rows(data, client, most), most)
    return data.y[torch.from_numpy(rows).to(data.y.device)].cpu()
