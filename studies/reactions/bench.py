"""A round of adapters batched over clients, against a loop in plain PyTorch that swaps the adapters
of one base: seconds, and on a GPU memory.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from adapters.cells import Cell
from adapters.study import device_name
from reactions.bert import PADDING
from reactions.cells import ReactionSettings, ReactionStudy
from torch import Tensor, nn

from fedblocks.core.state import State
from fedblocks.engines.auto.trial import TrialPlan, planned
from fedblocks.engines.batching import Draw, batches
from fedblocks.engines.processes.workers import cores
from fedblocks.engines.round import Engine, Experiment, run_round
from fedblocks.engines.vectorised import Vectorised
from fedblocks.recipes.running.provenance import code_version
from fedblocks.runs.run import tf32

RATE, REPEAT = 2e-3, 3
THREADS = torch.get_num_threads()
SHORT = 48  # tokens
ON_GPU = ReactionSettings(clients=32, unseen=0, size=64)
ON_CPU = ReactionSettings(clients=8, unseen=0, size=40, batch=4)
Tensors = dict[str, Tensor]


class Swapped(nn.Module):
    """A dense layer at rest, and one client's adapter."""

    def __init__(self, base: nn.Linear, rank: int, scale: float) -> None:
        super().__init__()
        self.base, self.scale = base, scale
        self.lora_A = nn.Parameter(torch.zeros(rank, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x)
        return out + self.scale * F.linear(F.linear(x, self.lora_A), self.lora_B)


@dataclass(frozen=True, eq=False)
class Loop:
    """Federated averaging as one would write it: a client after the other on one model."""

    model: nn.Module
    experiment: Experiment

    @staticmethod
    def of(work: ReactionStudy, experiment: Experiment) -> Loop:
        model = work.make_module().requires_grad_(False)
        for part in list(model.modules()):
            for name in ("query", "value"):
                if isinstance(base := getattr(part, name, None), nn.Linear):
                    scale = work.settings.alpha / work.settings.rank
                    setattr(part, name, Swapped(base, work.settings.rank, scale))
        model.get_submodule("classifier").requires_grad_(True)
        return Loop(model.to(work.device), experiment)

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        return {n: p for n, p in self.model.named_parameters() if p.requires_grad}

    def round(self, shared: Tensors) -> Tensors:
        """The mean of what the clients make of the shared adapters and head."""
        data = self.experiment.data
        sums = {name: torch.zeros_like(value) for name, value in shared.items()}
        for client in range(data.clients):
            share = len(data.train[client]) / int(data.train.sizes.sum())
            for name, value in self.train(client, shared).items():
                sums[name] += share * value
        return sums

    def train(self, client: int, shared: Tensors) -> Tensors:
        data, trained = self.experiment.data, self.trained
        with torch.no_grad():
            for name, parameter in trained.items():
                parameter.copy_(shared[name])
        optimizer = torch.optim.Adam(trained.values(), RATE)
        for rows in self.order(client):
            optimizer.zero_grad()
            F.cross_entropy(self.model(data.x[rows]), data.y[rows]).backward()
            optimizer.step()
        return {name: parameter.detach() for name, parameter in trained.items()}

    def order(self, client: int) -> list[Tensor]:
        """The rows of each batch: those that the library draws."""
        own = torch.from_numpy(self.experiment.data.train[client])
        method, draw = self.experiment.methods["all"], Draw(0, 0, client, "train")
        drawn = batches(method, method.phases()[0], 0, len(own), draw)
        return [own[torch.from_numpy(places)].to(self.experiment.data.device) for places in drawn]

    def activations(self, rows: Tensor) -> int:
        """Bytes at the peak of one step on so many rows, beyond what was there before."""
        data = self.experiment.data
        before = peak_of(lambda: None)
        whole = lambda: F.cross_entropy(self.model(data.x[rows]), data.y[rows]).backward()
        return peak_of(whole) - before


def bench(work: ReactionStudy) -> dict[str, Any]:
    """Each length and precision; both ways in turn, after one round of each to warm up."""
    on_gpu = work.device.type == "cuda"
    work = replace(work, settings=ON_GPU if on_gpu else ON_CPU)
    found = {
        f"{steps} tokens, {precision}": contest(shorten(work, steps), precision == "tf32")
        for steps in (SHORT, work.material.tokens.shape[1])
        for precision in (("float32", "tf32") if on_gpu else ("float32",))
    }
    return {
        "clients": work.settings.clients,
        "batch": work.settings.batch,
        "rank": work.settings.rank,
        "device": device_name(work.device),
        "threads": torch.get_num_threads(),
        "load": os.getloadavg()[0],
        "torch": torch.__version__,
        "code": code_version(),
        "rounds": found,
    }


def shorten(work: ReactionStudy, steps: int) -> ReactionStudy:
    """Only reactions of so many tokens at most."""
    tokens, old = work.material.tokens, work.material
    rows = (tokens[:, steps:] == PADDING).all(1)
    new = replace(old, tokens=tokens[rows, :steps], labels=old.labels[rows])
    return replace(work, material=replace(new, patents=old.patents[rows]))


def contest(work: ReactionStudy, is_rounded: bool) -> dict[str, Any]:
    """Seconds of a round of each, and how far apart their results are."""
    cell = Cell("iid", "fedavg_lora", RATE, 0)
    experiment = Experiment.of(work.method(cell), work.federation("iid", 0), 0)
    state, everybody = experiment.start(), range(work.settings.clients)
    on_cpu = work.device.type == "cpu"
    engines: dict[str, Engine] = {"batched": Vectorised()}
    if on_cpu:  # what a run of some length would take by itself
        plan = TrialPlan(experiment, everybody, len(everybody), processes=cores(), threads=THREADS)
        engines["chosen"] = planned(plan)[0]
    rounds = {
        name: partial(run_round, experiment, state, everybody, engine)
        for name, engine in engines.items()
    }
    ours = lambda: only_copies(rounds["batched"]()[0])
    with tf32(is_rounded):
        held = peak_of(lambda: None)  # the base, the data and the start
        peak = peak_of(ours)  # while nothing else is held
        loop, shared = Loop.of(work, experiment), only_copies(state)
        theirs = lambda: loop.round(shared)
        apart = distance(ours(), theirs(), shared)
        times = take_turns({**rounds, "loop": theirs}, work.device)
        memory = {} if on_cpu else memory_of(loop, work.settings, peak, held)
    by_clock = lambda one: {k: times["loop"][k] / one[k] for k in ("seconds", "cpu_seconds")}
    ratios = {f"loop / {name}": by_clock(times[name]) for name in engines}
    chosen = {"engine": engines["chosen"].name} if on_cpu else {}
    return {**times, **ratios, **chosen, "relative difference": apart, **memory}


def only_copies(state: State) -> Tensors:
    """What is shared by all, by the names of its tensors."""
    return {n: v[0] for block in state.server.values() for n, v in block.items()}


def take_turns(
    contenders: dict[str, Callable[[], object]], device: torch.device
) -> dict[str, dict[str, float]]:
    """Medians of wall clock and of this process's CPU time, all threads together."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    for _ in range(REPEAT):
        for name, work in contenders.items():
            wait(device)
            begin, cpu = time.perf_counter(), time.process_time()
            work()
            wait(device)
            seconds[name].append((time.perf_counter() - begin, time.process_time() - cpu))
    median = lambda name, k: statistics.median(pair[k] for pair in seconds[name])
    return {n: {"seconds": median(n, 0), "cpu_seconds": median(n, 1)} for n in contenders}


def memory_of(loop: Loop, settings: ReactionSettings, peak: int, held: int) -> dict[str, Any]:
    """Bytes at the peak of a batched round and before it, beside what it cannot do without."""
    size = lambda tensors: sum(t.numel() * t.element_size() for t in tensors)
    trained = list(loop.trained.values())
    data = loop.experiment.data
    base = size(loop.model.parameters()) - size(trained)
    rows = torch.arange(settings.clients * settings.batch, device=data.device)
    needed = {
        "base": base,
        "data": size([data.x, data.y]),
        # an adapter, its gradient and two moments for each client
        "adapters": 4 * settings.clients * size(trained),
        "activations": loop.activations(rows),  # of the same rows as one batch, in plain PyTorch
    }
    share = peak / sum(needed.values())
    return {"memory": {"held before": held, "peak": peak, **needed, "peak / needed": share}}


def peak_of(work: Callable[[], object]) -> int:
    """Bytes of GPU memory; 0 on a CPU."""
    if not torch.cuda.is_available():
        work()
        return 0
    gc.collect()  # recorded steps of other lengths hold memory, too
    torch.cuda.reset_peak_memory_stats()
    work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


def distance(ours: Tensors, theirs: Tensors, start: Tensors) -> float:
    """How far apart two results are, relative to how far one is from the start."""
    apart = sum((ours[n].to(v) - v).square().sum() for n, v in theirs.items())
    moved = sum((start[n].to(v) - v).square().sum() for n, v in theirs.items())
    return float((apart / moved) ** 0.5)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
