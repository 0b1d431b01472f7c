"""Rounds of a hundred clients out of a thousand and out of a million, in turn: a busy machine
disturbs both alike.

    python studies/population_rounds.py results/population-rounds.json
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

from fedblocks.bench.jobs import JOBS
from fedblocks.bench.materials import materials
from fedblocks.bench.measure import our_round
from fedblocks.engines.vectorised import Vectorised
from fedblocks.runs.storage.environment import environment

FEW, MANY, ROUNDS, AGAIN = 1_000, 1_000_000, 60, 3


def seconds() -> dict[int, list[float]]:
    """Of every round, after five to warm up."""
    rounds = {
        n: our_round(materials(replace(JOBS["J8/1000"], clients=n), "cpu"), Vectorised())
        for n in (FEW, MANY)
    }
    actual: dict[int, list[float]] = {n: [] for n in rounds}
    for _ in range(5 + ROUNDS):
        for clients, round in rounds.items():
            began = time.perf_counter()
            round()
            actual[clients].append(time.perf_counter() - began)
    return {clients: taken[5:] for clients, taken in actual.items()}


def main(path: str) -> None:
    trials = []
    for _ in range(AGAIN):
        taken = seconds()
        medians = {clients: median(values) for clients, values in taken.items()}
        trials.append({"median_seconds": medians, "ratio": medians[MANY] / medians[FEW]})
        print(f"a million over a thousand: {trials[-1]['ratio']:.2f}")
    Path(path).write_text(
        json.dumps({"env": environment(), "rounds": ROUNDS, "trials": trials}, indent=2)
    )


if __name__ == "__main__":
    main(sys.argv[1])
