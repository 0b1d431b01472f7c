"""Which defaults of FedMN suit data without planted groups? The suite's beds, by validation.

    FEDBLOCKS_DATA=... python studies/fedmn_defaults.py ladder    what was tried
    FEDBLOCKS_DATA=... python studies/fedmn_defaults.py check     the frozen defaults
    python studies/fedmn_defaults.py paths     what clients use in the suite's runs, runs/suite

They add to results/fedmn-defaults.json. Everything but the options named below is as in the suite,
also the learning rate. Seeds are 5000, by which the suite tunes, and 1000 to 1002, those of its
held-out variants; no row of the suite's report has them. Accuracies are on validation data: test
data are not looked at here. Paths are the different sets of gates that clients use in the end; in
the suite's runs those of the report's seeds.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from step_scale import Options, configuration

from fedblocks.engines.round import Evaluation, evaluate_parts, run_round
from fedblocks.engines.vectorised import Vectorised
from fedblocks.recipes.suite.beds import BEDS
from fedblocks.recipes.suite.entrants import HELD_OUT, TUNING
from fedblocks.runs.build import prepare

OUT = Path("results/fedmn-defaults.json")
SEEDS = {"ladder": (TUNING,), "check": (HELD_OUT, HELD_OUT + 1, HELD_OUT + 2)}
FADING = {"name": "linear", "start": 1.0, "end": 0.0, "rounds": 0.5}
BEFORE: Options = {
    "modules": (2, 2, 2),
    "widths": (512, 256),
    "module_start": "independent",
    "lr_scale": "printed",
    "router_start": "drawn",
    "gate_noise": FADING,
}
CUT: Options = {**BEFORE, "widths": None}
FAST: Options = {**CUT, "lr_scale": "mixture"}
ALIKE: Options = {**FAST, "module_start": "alike"}
QUIET: Options = {**ALIKE, "gate_noise": 0.0}
ONE_ENCODER: Options = {**QUIET, "modules": (1, 4, 4)}
OUTPUTS: Options = {**QUIET, "modules": (1, 8)}
CHOSEN: Options = {**OUTPUTS, "router_start": "updates"}
VARIANTS: dict[str, tuple[str, Options]] = {
    "Local": ("local", {}),
    "FedAvg": ("fedavg", {}),
    "earlier defaults": ("fedmn", BEFORE),
    "earlier, no dropout": ("fedmn", {**BEFORE, "dropout": 0.0}),
    "earlier, lr_scale mixture": ("fedmn", {**BEFORE, "lr_scale": "mixture"}),
    "the net is a path": ("fedmn", CUT),
    "+ lr_scale mixture": ("fedmn", FAST),
    "+ modules start alike": ("fedmn", ALIKE),
    "+ no noise": ("fedmn", QUIET),
    "+ pool 1 x 4 x 4": ("fedmn", ONE_ENCODER),
    "1 x 4 x 4 from updates": ("fedmn", {**ONE_ENCODER, "router_start": "updates"}),
    "+ pool 1 x 8": ("fedmn", OUTPUTS),
    "1 x 8 from updates (chosen)": ("fedmn", CHOSEN),
    "chosen, pool 1 x 4": ("fedmn", {**CHOSEN, "modules": (1, 4)}),
    "chosen, modules start independent": ("fedmn", {**CHOSEN, "module_start": "independent"}),
    "chosen, lr_scale printed": ("fedmn", {**CHOSEN, "lr_scale": "printed"}),
    "chosen, noise that fades": ("fedmn", {**CHOSEN, "gate_noise": FADING}),
    "chosen, 4 open rounds": ("fedmn", {**CHOSEN, "pretrain_rounds": 4}),
    "chosen, router rests": ("fedmn", {**CHOSEN, "router_lr": 1e-6}),
}
CHECKED = ("Local", "FedAvg", "earlier defaults", "1 x 8 from updates (chosen)")


def play(bed: str, variant: str, seed: int) -> dict[str, Any]:
    """A run as in the suite: the mean accuracy of clients, and how many paths they use."""
    began = time.process_time()
    prepared = prepare(configuration(bed, *VARIANTS[variant], seed))
    run, engine = prepared.experiment, Vectorised()
    state = run.start()
    for number in range(BEDS[bed].rounds):
        state, _ = run_round(run, state, prepared.sampling.cohort(number), engine)
    end = evaluate_parts(run, state, prepared.clients, engine, ["validation"])
    counts = end.scores["validation"][BEDS[bed].view]
    accuracy = np.mean([right / max(asked, 1) for right, asked, *_ in counts.values()])
    seconds = round(time.process_time() - began)
    return {"accuracy": round(float(accuracy), 4), "paths": paths(end), "seconds": seconds}


def paths(end: Evaluation) -> int:
    return len({tuple(gates) for gates in end.portraits.get("gates", {}).values()})


def stored() -> dict[str, Any]:
    known: dict[str, Any] = json.loads(OUT.read_text()) if OUT.exists() else {}
    return {"ladder": {}, "check": {}, **known}


def add(what: str, bed: str, variant: str, seeds: Sequence[int]) -> None:
    for seed in seeds:
        if str(seed) in stored()[what].get(bed, {}).get(variant, {}):
            continue
        result = play(bed, variant, seed)
        results = stored()
        results[what].setdefault(bed, {}).setdefault(variant, {})[str(seed)] = result
        OUT.write_text(json.dumps(results, indent=1) + "\n")
        print(what, bed, variant, seed, result, flush=True)


def paths_of_suite() -> dict[str, dict[str, int]]:
    """Bed -> seed -> how many paths clients use at the end of the suite's runs with defaults."""
    bed_of = {bed.data_set: bed.name for bed in BEDS.values()}
    found: dict[str, dict[str, int]] = {}
    for folder in sorted(Path("runs/suite").glob("fedmn-*")):
        table = tomllib.loads((folder / "config.toml").read_text())
        with sqlite3.connect(folder / "run.sqlite") as stored_run:
            ask = "SELECT COUNT(DISTINCT numbers) FROM snapshots WHERE name = 'gates'"
            ((count,),) = stored_run.execute(ask)
        found.setdefault(bed_of[table["data"]["name"]], {})[str(table["seed"])] = count
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=(*SEEDS, "paths"))
    parser.add_argument("--beds", default=",".join(BEDS))
    parser.add_argument("--only", help="variants, with ; between them")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.what == "paths":
        OUT.write_text(json.dumps({**stored(), "suite paths": paths_of_suite()}, indent=1) + "\n")
        sys.exit()
    usual = VARIANTS if args.what == "ladder" else CHECKED
    for name in args.only.split(";") if args.only else usual:
        for bed in args.beds.split(","):
            add(args.what, bed, name, SEEDS[args.what])
