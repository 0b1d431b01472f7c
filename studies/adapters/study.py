"""How a cell of a study of adapters is run: train for some rounds, then score."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from adapters.cells import BASE, CENTRAL, Cell, Schedule, Settings

import fedblocks as fb
from fedblocks.core.lora import LoraNet
from fedblocks.core.state import State
from fedblocks.data.rows import Ints, Rows
from fedblocks.engines.round import Engine, Experiment, Scores, evaluate_parts, run_round
from fedblocks.engines.vectorised import Vectorised
from fedblocks.recipes.running.provenance import code_version
from fedblocks.runs.rounds import attempt
from fedblocks.runs.run import tf32

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
    BASE: (fb.Local, {}),  # without a round
}
LATER = ("product_svd", "ffa_lora", "product_stack", "fedavg_lora_own_head")


@dataclass(frozen=True, eq=False)
class Study(ABC):
    """What every cell needs. A study says how its data are split, and what its base is."""

    settings: Settings
    device: torch.device
    schedule: ClassVar[Schedule]

    @abstractmethod
    def federation(self, split: str, seed: int) -> fb.Federation:
        """The clients that train, then the unseen ones, on the device."""

    @abstractmethod
    def net(self, rank: int) -> LoraNet:
        """The base with adapters of a rank."""

    @abstractmethod
    def partition_hash(self, split: str, seed: int) -> str:
        """Of who has which examples."""

    def method(self, cell: Cell) -> fb.Method:
        kind, options = METHODS[cell.method]
        rank = max(options.get("ranks", (self.settings.rank,)))
        net = self.net(rank)
        if net.full_head is None:
            options = {name: value for name, value in options.items() if name != "head"}
        batch = self.settings.central_batch if cell.method == CENTRAL else self.settings.batch
        how = {"lr": cell.rate or 1.0, "batch_size": batch, "optimizer": fb.Adam()}
        return kind(net, **how, **options)

    def run(self, cell: Cell) -> dict[str, Any]:
        """Train and score; products on a GPU are in tensor-float-32."""
        begin = time.perf_counter()
        data = self.federation(cell.split, cell.seed)
        unseen = range(self.settings.clients, data.clients)
        experiment = Experiment({"all": self.method(cell)}, data, cell.seed, unseen=unseen)
        with tf32(True):
            state, sent = self.train(cell, experiment)
            scores = score(experiment, state, joining=cell.method != BASE)
        return {
            **asdict(cell),
            **scores,
            "bytes": sent,
            "partition": self.partition_hash(cell.split, cell.seed),
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
        state, sent = experiment.start(), {"down": 0, "up": 0}
        engine: Engine = Vectorised()
        for _ in range(0 if cell.method == BASE else self.settings.rounds):
            work = partial(run_round, experiment, state, clients)
            engine, (state, report) = attempt(work, engine, len(clients), [])
            if report.refusals:
                raise RuntimeError(f"{cell.key}: {report.refusals[0]}")
            ways = {"down": report.bytes_down, "up": report.bytes_up}
            sent = {way: sum(sum(b.values()) for b in by.values()) for way, by in ways.items()}
        return state, sent


def score(experiment: Experiment, state: State, joining: bool) -> dict[str, Any]:
    """Accuracies of the clients that trained, and of the others, after these have joined or
    without any training.
    """
    seen = [c for c in range(experiment.data.clients) if c not in experiment.unseen]
    parts = ("validation", "test")
    work = lambda engine: evaluate_parts(experiment, state, seen, engine, parts).scores
    engine, own = attempt(work, Vectorised(), len(seen), [])
    cold = evaluate_parts(experiment, state, experiment.unseen, engine, ("test",), joining=joining)
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
