"""Do the clients' first updates show the hidden groups, and does IFCA do better from them?

    python studies/found_clusters.py    writes results/found-clusters.json (minutes on one core)

Two federations with four hidden groups: the digits of `studies/hidden_groups.py` (20 clients, joint
shift), and MNIST turned by 0, 90, 180 or 270 degrees (24 clients with 100 training images each).
Nothing is tuned here. On the digits the settings are those of the first finding (learning rate 0.3,
three epochs); on MNIST they are the library's learning rate 0.1 and three epochs. Seeds 100 to 107
chose nothing.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import hidden_groups as digits
import numpy as np
import torch
from torch import Tensor

from fedblocks.core.method import Method
from fedblocks.core.state import State
from fedblocks.data import DataPool, dataset
from fedblocks.data.federation import Federation
from fedblocks.data.partitions import iid
from fedblocks.data.shifts import rotate
from fedblocks.engines.lanes.lanes import Lanes
from fedblocks.engines.round import Experiment
from fedblocks.engines.vectorised import Vectorised
from fedblocks.methods import METHODS
from fedblocks.nets import NETS
from fedblocks.reports.groups import adjusted_rand
from fedblocks.reports.intervals import bootstrap_interval

SEEDS = tuple(range(100, 108))
STARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "ifca, random": ("ifca", {"clusters": 4}),
    "ifca, updates": ("ifca", {"clusters": 4, "start": "updates"}),
    "ifca, updates, auto": ("ifca", {"clusters": "auto", "start": "updates"}),
    "clustered, one": ("clustered", {"epsilon1": 0.5, "epsilon2": 0.1, "first_round": 5}),
    "clustered, updates": (
        "clustered",
        {"epsilon1": 0.5, "epsilon2": 0.1, "start": "updates", "never_split": True},
    ),
    "modfl, warmup": ("modfl", {"operations": 4, "cohorts": "found"}),
    "modfl, updates": ("modfl", {"operations": 4, "cohorts": "found", "start": "updates"}),
    "modfl, updates, auto": (
        "modfl",
        {"operations": "auto", "cohorts": "found", "start": "updates"},
    ),
}
PAIRS = (
    ("ifca, updates", "ifca, random"),
    ("ifca, updates, auto", "ifca, random"),
    ("clustered, updates", "clustered, one"),
    ("modfl, updates", "modfl, warmup"),
)


@cache
def images() -> DataPool:
    return dataset("mnist_writers").load()


@cache
def turned_images(seed: int, groups: int = 4, clients: int = 24, each: int = 200) -> Federation:
    """MNIST: a half of each client's images is for training; groups by angle."""
    pool = images()
    draw = np.random.Generator(np.random.PCG64(seed))
    rows = draw.choice(len(pool.y), clients * each, replace=False)
    x, y = pool.x[rows], pool.y[rows]
    whole = Federation.from_arrays(
        x, y, iid(np.asarray(y), clients, seed=seed), split=(0.5, 0.25, 0.25), seed=seed
    )
    return rotate(whole, groups, seed=seed)


def digits_of_one_group(seed: int) -> Federation:
    pool = dataset("digits").load()
    parts = iid(np.asarray(pool.y), digits.CLIENTS, seed=seed)
    return Federation.from_arrays(pool.x, pool.y, parts, split=(0.6, 0.2, 0.2), seed=seed)


@dataclass(frozen=True)
class Bed:
    """Data by seed, and how clients train on them."""

    data: Callable[[int], Federation]
    shape: tuple[int, ...]
    lr: float
    rounds: int
    starts: tuple[str, ...] = tuple(STARTS)

    def method(self, name: str, options: dict[str, Any]) -> Method:
        net = NETS["mlp"](self.shape, 10, hidden=(64,))
        return METHODS[name](net, batch_size=16, lr=self.lr, epochs=3, **options)


BEDS = {
    "digits, joint shift": Bed(digits.federation, (1, 8, 8), 0.3, rounds=30),
    "mnist, turned": Bed(turned_images, (1, 28, 28), 0.1, 12, tuple(STARTS)[:3]),
}
ONE_GROUP = {
    "digits": Bed(digits_of_one_group, (1, 8, 8), 0.3, rounds=30),
    "mnist": Bed(lambda seed: turned_images(seed, groups=1), (1, 28, 28), 0.1, rounds=20),
}


def play(bed: Bed, name: str, options: dict[str, Any]) -> dict[str, Any]:
    """All seeds side by side: who is together after the first and the last round, and
    test accuracies.
    """
    runs = [Experiment.of(bed.method(name, options), bed.data(seed), seed) for seed in SEEDS]
    lanes, engine = Lanes(runs), Vectorised()
    everybody = [range(run.data.clients) for run in runs]
    states = [run.start() for run in runs]
    groups = []
    for number in range(bed.rounds):
        states = [state for state, _ in lanes.run_round(states, everybody, engine)]
        if number in (0, bed.rounds - 1):
            groups.append([homes(run, state) for run, state in zip(runs, states, strict=True)])
    print(name, options, flush=True)
    ends = lanes.evaluate_parts(states, everybody, engine, ["test"])
    return {"first": groups[0], "last": groups[-1], "test": [accuracies(end) for end in ends]}


def homes(run: Experiment, state: State) -> list[int]:
    """The cluster of each client: what the server knows, or what the client chooses."""
    if "membership" in state.server:
        return state.server["membership"]["value"].flatten().long().tolist()
    job = run.job("all", range(run.data.clients), state, [], False, "adapt")
    local = job.several(range(run.data.clients), torch.func.vmap)
    choice: Tensor = local.call(run.methods["all"].prepare, job.sent.blocks)["choice"]["value"]
    return choice.argmax(1).tolist()


def accuracies(end: Any) -> list[float]:
    counts = end.scores["test"]["personal"]
    return [counts[client][0] / counts[client][1] for client in sorted(counts)]


def summary(bed: Bed, played: dict[str, Any]) -> dict[str, Any]:
    hidden = [bed.data(seed).tags["group"].tolist() for seed in SEEDS]
    rand = {
        when: [round(adjusted_rand(a, b), 3) for a, b in zip(hidden, played[when], strict=True)]
        for when in ("first", "last")
    }
    return {
        "accuracy": round(float(np.mean(played["test"])), 4),
        "rand_after_first_round": rand["first"],
        "rand_after_last_round": rand["last"],
        "mean_rand_after_last_round": round(float(np.mean(rand["last"])), 3),
        "clusters": [len(set(own)) for own in played["last"]],
    }


def study() -> dict[str, Any]:
    results: dict[str, Any] = {"seeds": SEEDS}
    for title, bed in BEDS.items():
        played = {label: play(bed, *STARTS[label]) for label in bed.starts}
        rows: dict[str, Any] = {"rounds": bed.rounds, "lr": bed.lr}
        rows |= {label: summary(bed, own) for label, own in played.items()}
        pairs = [pair for pair in PAIRS if played.keys() >= set(pair)]
        for one, other in pairs:  # [seeds, clients]
            gain = np.array(played[one]["test"]) - np.array(played[other]["test"])
            rows[one][f"minus {other}"] = vars(bootstrap_interval(gain))
        results[title] = rows
        print(title, json.dumps(rows, indent=1), flush=True)
    auto = STARTS["ifca, updates, auto"]
    results["one group: clusters found"] = {
        title: [len(set(own)) for own in play(replace(bed, rounds=1), *auto)["last"]]
        for title, bed in ONE_GROUP.items()
    }
    print(results["one group: clusters found"])
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("results/found-clusters.json"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.write_text(json.dumps(study(), indent=1) + "\n")
