"""The cells of the study: a split of the data, a method, a learning rate and a seed each."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from reactions.bert import Classifier
from reactions.prepare import Material
from torch import nn

import fedblocks as fb
from fedblocks.core.lora import LoraNet
from fedblocks.core.state import State
from fedblocks.data.dirichlets import dirichlet_clients
from fedblocks.data.partition import Partition
from fedblocks.data.partitions import iid
from fedblocks.data.rows import Ints, Rows
from fedblocks.engines.round import Experiment, Scores, evaluate_parts, run_round
from fedblocks.engines.vectorised import Vectorised
from fedblocks.recipes.running.provenance import code_version
from fedblocks.runs.run import tf32

CENTRAL = "central_lora"
RANKS = {"ranks": (4, 8, 16)}  # of clients 0, 3, 6, ..., of 1, 4, 7, ... and of 2, 5, 8, ...
Options = dict[str, Any]
METHODS: dict[str, tuple[type[fb.Method], Options]] = {
    "local_lora": (fb.Local, {}),
    "fedavg_lora": (fb.FedAvgLoRA, {"head": "shared"}),
    "fedsa_lora": (fb.FedSALoRA, {"head": "private"}),
    "dual_lora": (fb.DualLoRA, {"head": "private"}),
    "product_svd": (fb.ProductLoRA, {"head": "shared", "keep": "svd"}),
    "padded_ranks": (fb.FedAvgLoRA, {"head": "shared", **RANKS}),
    "svd_ranks": (fb.ProductLoRA, {"head": "shared", "keep": "svd", **RANKS}),
    "ffa_lora": (fb.FFALoRA, {"head": "shared"}),
    "product_stack": (fb.ProductLoRA, {"head": "shared", "keep": "stack"}),
    "ifca_lora": (fb.IFCA, {"clusters": 4, "start": "updates"}),
    "fedavg_lora_own_head": (fb.FedAvgLoRA, {"head": "private"}),
    "pfedmb_lora": (fb.PFedMB, {"branches": 3}),
    CENTRAL: (fb.FedAvgLoRA, {"head": "shared"}),  # with one client, who has everything
}
BY_SPLIT = {
    "iid": (CENTRAL, "fedavg_lora"),
    "dirichlet": tuple(name for name in METHODS if name != CENTRAL),
}
# no question of the study hangs on them: after all seeds of the others
LATER = ("product_svd", "ffa_lora", "product_stack", "fedavg_lora_own_head")


@dataclass(frozen=True)
class Settings:
    """What was decided before the first run, and is the same for every method."""

    clients: int = 50
    unseen: int = 10  # further clients that never train, for the cold start
    size: int = 200  # reactions of a client, of which 60 % train, 20 % choose, 20 % test
    skew: float = 0.1  # of the Dirichlet draw of each client's classes
    rounds: int = 20  # of one local epoch
    rank: int = 8
    alpha: float = 16.0  # the scale of an adapter is alpha / rank
    batch: int = 10
    central_batch: int = 50
    rates: tuple[float, ...] = (1e-3, 3e-3, 1e-2)  # of Adam; chosen by validation with seed 0
    seeds: tuple[int, ...] = (0, 1, 2)

    def table(self) -> dict[str, Any]:
        """As JSON has it."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}


TINY = Settings(
    clients=4, unseen=1, size=20, rounds=1, batch=6, central_batch=12, rates=(1e-3,), seeds=(0,)
)


@dataclass(frozen=True)
class Cell:
    """One run."""

    split: str
    method: str
    rate: float
    seed: int

    @property
    def key(self) -> str:
        return f"{self.split}/{self.method}/{self.rate:g}/{self.seed}"


def cells(settings: Settings, stored: dict[str, Any]) -> Iterator[Cell]:
    """All cells, in the order in which they are worth most: first those that choose the learning
    rates, with the first seed; then the chosen rates with the other seeds. Cells are asked for one
    by one, and what is stored may grow in between; a method whose choice could not be made has no
    further ones.
    """
    pairs = [(split, name) for split, names in BY_SPLIT.items() for name in names]
    for is_later in (False, True):
        group = [pair for pair in pairs if (pair[1] in LATER) is is_later]
        yield from cells_of(group, settings, stored)


def cells_of(
    pairs: list[tuple[str, str]], settings: Settings, stored: dict[str, Any]
) -> Iterator[Cell]:
    """Those of these splits and methods."""
    first, *others = settings.seeds
    tries = [[Cell(*pair, rate, first) for rate in settings.rates] for pair in pairs]
    yield from (cell for tried in tries for cell in tried)
    for seed in others:
        for tried in tries:
            if all(cell.key in stored for cell in tried):
                best = max(tried, key=lambda cell: stored[cell.key]["validation"])
                yield replace(best, seed=seed)


@dataclass(frozen=True, eq=False)
class Study:
    """What every cell needs."""

    material: Material
    settings: Settings
    device: torch.device

    def partition(self, split: str, seed: int) -> Partition:
        s, labels = self.settings, self.material.labels
        count = s.clients + s.unseen
        if split == "dirichlet":
            return dirichlet_clients(labels, count, s.skew, seed=seed, size=s.size)
        rows = np.random.Generator(np.random.PCG64(seed)).permutation(len(labels))[: count * s.size]
        dealt = iid(labels[rows], count, seed=seed)
        return replace(dealt, rows=replace(dealt.rows, index=rows[dealt.rows.index]))

    def federation(self, split: str, seed: int) -> fb.Federation:
        tokens, labels = map(torch.from_numpy, (self.material.tokens, self.material.labels))
        how = {"split": (0.6, 0.2, 0.2), "seed": seed, "classes": int(labels.max()) + 1}
        built = fb.Federation.from_arrays(tokens, labels, self.partition(split, seed), **how)
        return built.compact().to(self.device)

    def make_module(self) -> nn.Module:
        """The base as it is stored, and a new head."""
        module = Classifier(self.material.config, int(self.material.labels.max()) + 1)
        module.bert.load_state_dict(self.material.base)
        return module

    def net(self, rank: int) -> LoraNet:
        targets = ("query", "value")
        return fb.lora(self.make_module, rank, self.settings.alpha, targets, head="classifier")

    def method(self, cell: Cell) -> fb.Method:
        kind, options = METHODS[cell.method]
        rank = max(options.get("ranks", (self.settings.rank,)))
        batch = self.settings.central_batch if cell.method == CENTRAL else self.settings.batch
        how = {"lr": cell.rate, "batch_size": batch, "optimizer": fb.Adam()}
        return kind(self.net(rank), **how, **options)

    def run(self, cell: Cell) -> dict[str, Any]:
        """Train and score; products on a GPU are in tensor-float-32."""
        begin = time.perf_counter()
        data = self.federation(cell.split, cell.seed)
        unseen = range(self.settings.clients, data.clients)
        experiment = Experiment({"all": self.method(cell)}, data, cell.seed, unseen=unseen)
        with tf32(True):
            state, sent = self.train(cell, experiment)
            scores = score(experiment, state)
        return {
            **asdict(cell),
            **scores,
            "bytes": sent,
            "partition": self.partition(cell.split, cell.seed).hash(),
            "seconds": round(time.perf_counter() - begin, 2),
            "device": device_name(self.device),
            "torch": torch.__version__,
            "code": code_version(),
        }

    def train(self, cell: Cell, experiment: Experiment) -> tuple[State, dict[str, int]]:
        """The last state, and the bytes of the last round."""
        clients = range(self.settings.clients)
        if cell.method == CENTRAL:
            whole = join_clients(experiment.data, clients)
            experiment = Experiment.of(experiment.methods["all"], whole, cell.seed)
            clients = range(1)
        engine, state = Vectorised(), experiment.start()
        for _ in range(self.settings.rounds):
            state, report = run_round(experiment, state, clients, engine)
            if report.refusals:
                raise RuntimeError(f"{cell.key}: {report.refusals[0]}")
        ways = {"down": report.bytes_down, "up": report.bytes_up}
        return state, {way: sum(sum(b.values()) for b in by.values()) for way, by in ways.items()}


def score(experiment: Experiment, state: State) -> dict[str, Any]:
    """Accuracies of the clients that trained, and of the others after they have joined."""
    seen = [c for c in range(experiment.data.clients) if c not in experiment.unseen]
    engine, parts = Vectorised(), ("validation", "test")
    own = evaluate_parts(experiment, state, seen, engine, parts).scores
    cold = evaluate_parts(experiment, state, experiment.unseen, engine, ("test",), joining=True)
    test = accuracies(own["test"])
    return {
        "validation": float(np.mean(accuracies(own["validation"]))),
        "mean": float(np.mean(test)),
        "accuracies": test,
        "cold_start": accuracies(cold.scores["test"]),
    }


def join_clients(data: fb.Federation, clients: Sequence[int]) -> fb.Federation:
    """One client, who has what some have."""
    parts = [np.concatenate([rows[client] for client in clients]) for rows in data.parts.values()]
    return replace(data, **dict(zip(data.parts, map(one_owner, parts))), names=())


def one_owner(rows: Ints) -> Rows:
    return Rows(rows, np.array([0, len(rows)]))


def accuracies(scores: Scores) -> list[float]:
    """Of each client's own model, in their order."""
    counts = scores["personal"]
    return [round(counts[client][0] / counts[client][1], 6) for client in sorted(counts)]


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
