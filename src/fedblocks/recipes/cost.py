"""How long a recipe may take on this machine: an estimate from examples, rounds and a
quick measurement of each net.
"""

from __future__ import annotations

import json
import time
from functools import cache

import torch

from fedblocks.config.choices import any_net, make
from fedblocks.config.model import Config
from fedblocks.config.options import Table
from fedblocks.recipes.papers.modfl_cost import side_by_side_work
from fedblocks.recipes.recipe import Cell
from fedblocks.recipes.running.halving import cost, rungs
from fedblocks.runs.run import threads

# data set -> official training and test rows, shape of an input, classes; others cannot be
# estimated unloaded
SHAPES: dict[str, tuple[int, int, tuple[int, ...], int]] = {
    "cifar10": (50_000, 10_000, (3, 32, 32), 10),
    "cifar100": (50_000, 10_000, (3, 32, 32), 100),
    "emnist": (697_932, 116_323, (1, 28, 28), 62),
    "femnist": (805_263, 0, (1, 28, 28), 62),
    "mnist_writers": (60_000, 10_000, (1, 28, 28), 10),
    "digits": (1_797, 0, (1, 8, 8), 10),
}
# texts by user, as the recipes read them whole -> training rows of a user on average, words of a
# row, words that are known
TEXTS = {"reddit_2006": (52.6, 20, 10_004), "shakespeare_roles": (56.7, 20, 10_004)}
TRAINED = 0.7  # share of all rows that are trained on, about
BATCH = 32  # of the measurement


def seconds(cell: Cell, seeds: int, quick: bool) -> float | None:
    """What a cell may cost with all combinations and seeds, on one worker; None: unknown."""
    points = cell.points(quick)
    config = Config.of(cell.table(points[0], quick=quick))
    runs = seeds + _tries(cell, quick) / config.rounds
    if work := side_by_side_work(config):
        costs = [rows * seconds_per_example(json.dumps(net), *shape) for rows, net, *shape in work]
        return runs * TRAINED * config.rounds * passes(config.method.table) * sum(costs)
    if config.data.name in TEXTS and not quick:
        rows, steps, words = TEXTS[config.data.name]
        examples = config.rounds * config.cohort.size * rows * passes(config.method.table)
        return runs * examples * seconds_per_example(json.dumps(config.net.table), (steps,), words)
    if config.data.name not in SHAPES:
        return None
    train, test, shape, classes = SHAPES[config.data.name]
    rows = {"train": train, "test": test}.get(config.data.options.get("part", "all"), train + test)
    testbed = config.data.testbed.table if config.data.testbed is not None else {}
    share = config.cohort.size if isinstance(config.cohort.size, float) else 0.2
    share *= testbed.get("fraction", 1.0) * testbed.get("share", 1.0)
    examples = rows * TRAINED * share * config.rounds * passes(config.method.table)
    each = seconds_per_example(json.dumps(config.net.table), shape, classes)
    return float(runs * examples * each)


def _tries(cell: Cell, quick: bool) -> float:
    """The rounds of all tries, which may be shorter runs than those of the seeds."""
    points = cell.points(quick)
    if len(points) < 2:
        return 0
    rounds: int = cell.table(points[0], quick=quick, tuning=True)["rounds"]
    return rounds * cost(rungs(len(points), rounds, quick))


def passes(method: Table) -> float:
    """How often a round goes through a client's examples."""
    try:
        phases = make("method", method, net=any_net()).phases()
    except Exception:  # a method that needs the real net
        return float(method.get("epochs", 1))
    copies = max(method.get("components", 1), 1)
    return float(sum(phase.epochs * len(phase.updates) for phase in phases) * copies)


@cache
def seconds_per_example(net: str, shape: tuple[int, ...], classes: int) -> float:
    """One step of training on this device, with random examples, divided by their number."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    module = make("net", json.loads(net), input_shape=shape, classes=classes).make().to(device)
    x = torch.rand(BATCH, *shape, device=device)  # [BATCH, *shape]
    x = (classes * x).long() if len(shape) == 1 else x  # words
    taken: list[float] = []
    # others may keep the processor busy
    clock = time.perf_counter if device == "cuda" else time.process_time
    with threads(1):  # as a worker has
        for _ in range(3):
            began = clock()
            loss = module(x).square().mean()
            loss.backward()
            loss.item()  # waits for a GPU
            taken.append(clock() - began)
    return min(taken) / BATCH
