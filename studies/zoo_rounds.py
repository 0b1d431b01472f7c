"""Rounds of every net of the zoo, one client after another, beside the plain loop.

The loop and the engine take turns. On a CPU both have one thread, and what is compared is the
processor time of each pair: other programs on the machine disturb it little. On a GPU it is the
time until all work is done there.

    python studies/zoo_rounds.py results/bench-zoo-cpu.json [NET ...]
    ZOO_DEVICE=cuda ZOO_SECONDS=2 python studies/zoo_rounds.py results/bench-zoo-h200.json
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch

from fedblocks.bench.jobs import COLOUR, GREY, J10, BenchJob
from fedblocks.bench.materials import materials
from fedblocks.bench.measure import Round, our_round
from fedblocks.bench.plain import PlainLoop
from fedblocks.engines.sequential import Sequential
from fedblocks.runs.storage.environment import environment

SECONDS = float(os.environ.get("ZOO_SECONDS", 20))  # for one net
DEVICE = torch.device(os.environ.get("ZOO_DEVICE", "cpu"))
PAIRS = 5, 40  # at least, at most
# eight steps of 32 examples a client; two clients a round, four of small nets
BASE = replace(J10, clients=2, cohort=2, cpu_cohort=None)
SMALL: dict[str, Any] = {"clients": 4, "cohort": 4}
SIGNALS = (6, 128)


def _job(name: str, shape: tuple[int, ...], **more: Any) -> BenchJob:
    return replace(BASE, **{"name": name, "about": name, "net": name, "shape": shape, **more})


ZOO = {
    job.name: job
    for job in (
        _job("mlp", GREY, **SMALL),
        _job("mlp 200-200", GREY, net="mlp", net_options={"hidden": (200, 200)}, **SMALL),
        _job("figure_mlp", GREY, **SMALL),
        _job("cnn", GREY),
        _job("cnn with BatchNorm", GREY, net="cnn", net_options={"batch_norm": True}),
        _job("lenet", COLOUR),
        _job("signal_cnn", SIGNALS, **SMALL),
        _job("femnist_cnn", GREY),
        _job("emnist_cnn", GREY),
        _job("pfl_cnn", COLOUR),
        _job("modfl_cifar", COLOUR),
        _job("modfl_stl", COLOUR),
        _job("modfl_hapt", SIGNALS, **SMALL),
        _job("modfl_rwhar", SIGNALS, **SMALL),
        _job("modfl_wisdm", SIGNALS, **SMALL),
        _job("resnet", COLOUR),
        _job("mobilenet_v2", COLOUR),
        _job("vit", COLOUR),
        _job("lstm", (96, 32), net_options={"units": 128}),
        _job("gru", (96, 32), net_options={"units": 128}),
        _job("gpt", (64,), classes=1_000, net_options={"width": 128}, examples=64, batch=8),
        _job("next_word", (20,), classes=2_004, examples=64, batch=8),
    )
}


def compare(job: BenchJob) -> dict[str, Any]:
    """The loop's time over ours: the median of pairs, and between what half of them lie."""
    ready = materials(job, str(DEVICE))
    sides: tuple[Round, Round] = PlainLoop(ready).round, our_round(ready, Sequential())
    for side in sides:
        for _ in range(3):  # ours records its steps in the first rounds only
            side()
    pairs: list[tuple[float, float]] = []
    began = time.perf_counter()
    while len(pairs) < PAIRS[0] or (
        len(pairs) < PAIRS[1] and time.perf_counter() - began < SECONDS
    ):
        pairs.append((_seconds(sides[0]), _seconds(sides[1])))
    ratios = [loop / ours for loop, ours in pairs]
    low, _, high = quantiles(ratios, n=4)
    return {
        "net": job.name,
        "pairs": len(pairs),
        "loop_ms": 1e3 * median(loop for loop, _ in pairs),
        "ours_ms": 1e3 * median(ours for _, ours in pairs),
        "times_the_loop": median(ratios),
        "half_between": [low, high],
    }


def _seconds(round: Round) -> float:
    """Of the processor; on a GPU, until it is done."""
    if DEVICE.type == "cpu":
        began = time.process_time()
        round()
        return time.process_time() - began
    torch.cuda.synchronize()
    began = time.perf_counter()
    round()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def main(path: str, names: list[str]) -> None:
    torch.set_num_threads(1)
    rows = []
    for name in names or ZOO:
        rows.append(compare(ZOO[name]))
        low, high = rows[-1]["half_between"]
        print(f"{name:22} {rows[-1]['times_the_loop']:.2f} ({low:.2f} to {high:.2f})", flush=True)
    Path(path).write_text(json.dumps({"env": environment(), "nets": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
