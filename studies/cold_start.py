"""A new client with 0, 1, 5, 20 or all of its examples: when does joining beat the global model?

    FEDBLOCKS_DATA=... python studies/cold_start.py [--beds hapt] [--methods fedavg pfedmb]

Every method is trained once for each seed on a bed of the suite, with its defaults, by the clients
that the bed trains. Then the bed's new clients join as the method says, each with the first
examples of its training data only, and are tested on all of their test data. The global model is
FedAvg's, which learns nothing from a new client. Seconds are of all new clients together, on one
core; bytes are what a new client is sent.

The results go to results/cold-start.json after every run; what is there is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from fedblocks.config.model import Config
from fedblocks.core.state import State
from fedblocks.data.federation import Federation
from fedblocks.data.rows import Rows
from fedblocks.engines.round import evaluate, evaluation_jobs
from fedblocks.methods import METHODS
from fedblocks.recipes.running.provenance import code_version
from fedblocks.recipes.suite.beds import BEDS, SuiteBed, choose_beds
from fedblocks.runs.build import Prepared, prepare
from fedblocks.runs.run import last_state, run
from fedblocks.runs.storage.folder import RunFolder

EXAMPLES = (0, 1, 5, 20, None)  # of each new client; None: all
SEEDS = (0, 1, 2)
OUT = Path("results/cold-start.json")
PAPERS = "digits-groups,hapt,mnist-writers,reddit"  # beds of the kinds of data of the four papers


def cut_rows(data: Federation, clients: Sequence[int], most: int | None) -> Federation:
    """The federation in which some clients have only their first training examples."""
    few = set(clients)
    rows = [data.train[c][:most] if c in few else data.train[c] for c in range(data.clients)]
    return replace(data, train=Rows.of(rows))


def join(bed: SuiteBed, prepared: Prepared, state: State, most: int | None) -> dict[str, Any]:
    """Accuracy of each new client, the seconds of them all, and the bytes of one."""
    data = cut_rows(prepared.experiment.data, prepared.unseen, most)
    experiment = replace(prepared.experiment, data=data)
    begin = time.perf_counter()
    scores = evaluate(experiment, state, prepared.unseen, prepared.engine, "test", joining=True)
    seconds = time.perf_counter() - begin
    counts = scores[bed.view]
    accuracies = [counts[c][0] / counts[c][1] for c in sorted(counts) if counts[c][1]]
    jobs = list(evaluation_jobs(experiment, state, prepared.unseen[:1], joining=True))
    sent = sum(int(own.sum()) for job in jobs for own in job.sent.bytes_down.values())
    shown = [round(accuracy, 4) for accuracy in accuracies]
    return {"accuracies": shown, "seconds": round(seconds, 3), "bytes": sent}


def run_cell(bed: SuiteBed, method: str, seed: int) -> dict[str, Any]:
    """Train, then let new clients join with few and more examples."""
    table = bed.config(method)
    table = {**table, "seed": seed, "data": {**table["data"], "seed": seed}}
    config = Config.of(table)
    with TemporaryDirectory() as place:
        run(config, Path(place) / "run")
        prepared = prepare(config)
        with RunFolder.open(Path(place) / "run") as folder:
            state, _ = last_state(folder, prepared)
    joined = {"all" if most is None else str(most): most for most in EXAMPLES}
    return {name: join(bed, prepared, state, most) for name, most in joined.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--beds", default=PAPERS)
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    stored = json.loads(OUT.read_text()) if OUT.is_file() else {}
    for bed in choose_beds(chosen.beds, lite=False):
        for method in chosen.methods:
            for seed in SEEDS:
                key = f"{bed.name}/{method}/{seed}"
                if key in stored:
                    continue
                begin = time.perf_counter()
                stored[key] = {**run_cell(BEDS[bed.name], method, seed), "code": code_version()}
                write(stored)
                print(f"{key}: {time.perf_counter() - begin:.1f} s", flush=True)


def write(stored: dict[str, Any]) -> None:
    """The whole file at once, so that a stop leaves the old one or the new one."""
    new = OUT.with_suffix(".new")
    new.write_text(json.dumps(stored, indent=1) + "\n")
    os.replace(new, OUT)


if __name__ == "__main__":
    main()
