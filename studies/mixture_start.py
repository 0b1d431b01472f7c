"""How should branches start whose parameters are mixed? Five starts, three data sets.

    FEDBLOCKS_DATA=... python studies/mixture_start.py    writes results/mixture-start.json (an
    hour)

Every start gets a search of nine settings (independent ones of twelve), each with seeds 0, 1 and 2;
the one with the best mean validation accuracy is run with seeds 10 to 14, by which starts were
compared, and with seeds 20 to 24, which chose nothing. Differences are paired by seed. The file
holds all runs, also those of grids that were widened later (docs/methods/pfedmb.md tells how); the
same command does only what is missing.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import nn

from fedblocks.core.blocks import Block, Pool
from fedblocks.core.method import Method
from fedblocks.core.net import Net
from fedblocks.core.parts import Params
from fedblocks.core.starts import Common, Draw, Independent, Start
from fedblocks.core.state import initial_state
from fedblocks.data import dataset
from fedblocks.data.dirichlets import dirichlet_clients
from fedblocks.data.federation import Federation
from fedblocks.data.partitions import iid
from fedblocks.data.shifts import joint
from fedblocks.engines.round import Experiment, evaluate_parts, run_round
from fedblocks.engines.vectorised import Vectorised
from fedblocks.methods import METHODS
from fedblocks.methods.pfedmb.method import PFedMB
from fedblocks.nets import NETS
from fedblocks.reports.student import half_width

SEEDS = (0, 1, 2)  # choose lr and alpha_lr of every start
SECOND = (
    10,
    11,
    12,
    13,
    14,
)  # chose among starts; on the digits they were seen before grids were widened
FRESH = (20, 21, 22, 23, 24)  # chose nothing; run once, when everything else was fixed
SPLIT = (0.4, 0.2, 0.4)  # many rows for tests, which cost little
LITERAL = "independent"
Runs = Mapping[str, dict[str, float]]  # key of a job -> part of the data -> mean accuracy


@dataclass(frozen=True)
class Enlarged:
    """Independent initialisations, each times sqrt(size): their mean has the spread of one."""

    def slots(self, draw: Draw, size: int) -> Params:
        return {name: size**0.5 * own for name, own in Independent().slots(draw, size).items()}


STARTS: dict[str, Start] = {
    LITERAL: Independent(),
    "enlarged": Enlarged(),
    **{f"common {apart:g}": Common(apart) for apart in (0.1, 0.3, 1.0)},
}
GRIDS: dict[str, dict[str, tuple[float, ...]]] = {
    **{name: {"lr": (0.1, 0.3, 0.6), "alpha_lr": (0.3, 3.0, 30.0)} for name in STARTS},
    LITERAL: {"lr": (0.1, 0.3, 0.6, 1.0), "alpha_lr": (0.3, 3.0, 30.0)},  # it asks for larger ones
    **{
        name: {"lr": (0.03, 0.1, 0.3)} for name in ("local", "fedavg_ft")
    },  # a mixture's layer moves by about lr / B
}


@dataclass(frozen=True, eq=False)
class Branched(PFedMB):
    """pFedMB whose branches start in any way."""

    how: Start = Independent()  # noqa: RUF009 - frozen

    def blocks(self) -> dict[str, Block]:
        return {
            name: replace(block, start=self.how) if isinstance(block, Pool) else block
            for name, block in super().blocks().items()
        }


@dataclass(frozen=True)
class Bed:
    """A federation, a net, and how long it is trained."""

    about: str
    data: Callable[[int], Federation]
    net: Callable[[], Net]
    options: dict[str, int]
    branches: int
    rounds: int


def digits(seed: int) -> Federation:
    pool = dataset("digits").load()
    owned = iid(np.asarray(pool.y), 20, seed=seed)
    built = Federation.from_arrays(pool.x, pool.y, owned, split=(0.6, 0.2, 0.2), seed=seed)
    return joint(built, 4, seed=seed, keep=0.6)


def watch(seed: int) -> Federation:
    people = np.random.Generator(np.random.PCG64(seed)).choice(51, 15, replace=False)
    pool: Any = dataset("wisdm51_watch").load(overlap=0.0, split=SPLIT, seed=seed)
    return pool.federation().subset(np.sort(people)).compact()


@cache
def halved_images() -> tuple[Any, Any]:
    """The official test images, 32 x 32, as means of 2 x 2 pixels."""
    pool = dataset("cifar10").load(part="test")
    return F.avg_pool2d(pool.x, 2), pool.y


def cifar(seed: int) -> Federation:
    x, y = halved_images()
    owned = dirichlet_clients(np.asarray(y), 10, alpha=0.4, seed=seed, size=250)
    return Federation.from_arrays(x, y, owned, split=SPLIT, seed=seed, classes=10).compact()


def signal_net() -> Net:
    """Two convolutions over time and two dense layers, for three axes of 52 steps."""

    def make() -> nn.Module:
        convolutions = [
            nn.Conv1d(3, 16, 5),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(16, 16, 5),
            nn.ReLU(),
        ]
        dense = [nn.MaxPool1d(2), nn.Flatten(), nn.Linear(160, 64), nn.ReLU(), nn.Linear(64, 6)]
        return nn.Sequential(*convolutions, *dense)

    return Net.of(make)


BEDS = {
    "digits": Bed(
        "digits, 20 clients in 4 hidden groups, perceptron of 4 layers",
        digits, lambda: NETS["mlp"]((1, 8, 8), 10, hidden=(64, 64, 64)),
        {"epochs": 3, "batch_size": 16}, branches=4, rounds=30,
    ),
    "watch": Bed(
        "activities by a watch, 15 people, 4 layers",
        watch, signal_net, {"epochs": 2, "batch_size": 16}, branches=5, rounds=20,
    ),
    "cifar": Bed(
        "CIFAR-10 of 16 x 16 pixels, 10 clients by Dirichlet(0.4), LeNet of 5 layers",
        cifar, lambda: NETS["lenet"]((3, 16, 16), 10),
        {"epochs": 2, "batch_size": 16}, branches=5, rounds=20,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Job:
    """One run."""

    bed: str
    name: str  # a start, or a method to compare with
    options: tuple[tuple[str, float], ...]
    seed: int

    @property
    def key(self) -> str:
        return "/".join(
            [self.bed, self.name, *(f"{k} {v:g}" for k, v in self.options), f"seed {self.seed}"]
        )

    @property
    def method(self) -> Method:
        bed = BEDS[self.bed]
        options: dict[str, Any] = {**bed.options, **dict(self.options)}
        if self.name in STARTS:
            options |= {"branches": bed.branches, "alpha_epochs": 1, "how": STARTS[self.name]}
            options["lr_scale"] = "printed"  # all runs are older than the other scale
            return Branched(bed.net(), **options)
        return METHODS[self.name](bed.net(), **options)

    def run(self) -> dict[str, float]:
        """Mean accuracies of personal models after the last round."""
        setting = Experiment.of(self.method, BEDS[self.bed].data(self.seed), self.seed)
        state, everybody, engine = setting.start(), range(setting.data.clients), Vectorised()
        for _ in range(BEDS[self.bed].rounds):
            state, _ = run_round(setting, state, everybody, engine)
        parts = evaluate_parts(setting, state, everybody, engine, ("validation", "test")).scores
        return {part: mean_accuracy(views["personal"]) for part, views in parts.items()}


def mean_accuracy(counts: Mapping[int, tuple[float, float, float]]) -> float:
    return round(
        float(np.mean([right / scored for right, scored, _ in counts.values() if scored])), 5
    )


def settings(name: str) -> list[tuple[tuple[str, float], ...]]:
    grid = GRIDS[name]
    return [tuple(zip(grid, values, strict=True)) for values in product(*grid.values())]


def chosen(runs: Runs, bed: str, name: str) -> tuple[tuple[str, float], ...]:
    """The setting with the best mean validation accuracy."""
    score = lambda own: np.mean(
        [runs[Job(bed, name, own, seed).key]["validation"] for seed in SEEDS]
    )
    return max(settings(name), key=score)


def frozen(runs: Runs, bed: str, name: str, seeds: tuple[int, ...]) -> list[Job]:
    """The chosen setting with other seeds."""
    own = chosen(runs, bed, name)
    return [Job(bed, name, own, seed) for seed in seeds]


def share_of_spread(bed: str, name: str) -> float:
    """The spread of the logits at the start, of that of a single net; geometric mean over seeds."""
    ratios = []
    for seed in FRESH:
        method = Job(bed, name, settings(name)[0], seed).method
        x, one = BEDS[bed].data(seed).x[:200], method.net.init(seed + 1000)
        server = initial_state({"all": method}, 1, seed).server
        even = {k: v.mean(0) for block in server.values() for k, v in block.items()}
        ratios.append(float(method.net(even, x).std(0).mean() / method.net(one, x).std(0).mean()))
    return round(float(np.exp(np.mean(np.log(ratios)))), 3)


def difference(apart: npt.NDArray[np.float64]) -> list[float]:
    """The mean over seeds, and half of its 95 % interval (Student)."""
    return [round(float(apart.mean()), 4), round(half_width(apart.tolist()), 4)]


def any_setting(runs: Runs, bed: str, name: str) -> float:
    """The mean validation accuracy over the settings that every start tried."""
    tried = [own for own in settings(name) if name not in STARTS or own in settings("enlarged")]
    jobs = [Job(bed, name, own, seed) for own in tried for seed in SEEDS]
    return round(float(np.mean([runs[job.key]["validation"] for job in jobs])), 4)


def table(runs: Runs, bed: str, seeds: tuple[int, ...]) -> dict[str, Any]:
    test = {
        name: np.array([runs[job.key]["test"] for job in frozen(runs, bed, name, seeds)])  # [seeds]
        for name in GRIDS
    }
    rows: dict[str, Any] = {}
    for name, own in test.items():
        rows[name] = {
            "chosen": dict(chosen(runs, bed, name)),
            "mean": round(float(own.mean()), 4),
            "any_setting": any_setting(runs, bed, name),
            **{f"minus_{other}": difference(own - test[other]) for other in (LITERAL, "enlarged")},
            **({"logits_at_start": share_of_spread(bed, name)} if name in STARTS else {}),
        }
    return rows


def study(path: Path, beds: list[str]) -> None:
    runs: dict[str, dict[str, float]] = (
        json.loads(path.read_text())["runs"] if path.exists() else {}
    )

    def carry_out(jobs: list[Job]) -> None:
        for job in jobs:
            if job.key not in runs:
                runs[job.key] = job.run()
                path.write_text(json.dumps({"runs": runs}, indent=1) + "\n")
                print(job.key, runs[job.key], flush=True)

    for bed in beds:
        carry_out(
            [
                Job(bed, name, own, seed)
                for name in GRIDS
                for own in settings(name)
                for seed in SEEDS
            ]
        )
        for seeds in (SECOND, FRESH):
            carry_out([job for name in GRIDS for job in frozen(runs, bed, name, seeds)])
    about = {
        "seeds": SEEDS,
        "second": SECOND,
        "fresh": FRESH,
        "beds": {bed: BEDS[bed].about for bed in beds},
    }
    tables = {bed: table(runs, bed, FRESH) for bed in beds}
    second = {bed: table(runs, bed, SECOND) for bed in beds}
    whole = {**about, "tables": tables, "tables_of_second": second, "runs": runs}
    path.write_text(json.dumps(whole, indent=1) + "\n")
    for bed, rows in tables.items():
        for name, row in rows.items():
            print(bed, name, row)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--beds", default=",".join(BEDS))
    parser.add_argument("--out", type=Path, default=Path("results/mixture-start.json"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    study(args.out, args.beds.split(","))
