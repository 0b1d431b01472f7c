"""Does the same learning rate mean the same for mixtures, and is a mixture better if it does?

    FEDBLOCKS_DATA=... python studies/step_scale.py steps   how far a first step goes, of FedAvg's
    FEDBLOCKS_DATA=... python studies/step_scale.py beds    both values of `lr_scale` on three beds

Both add to results/step-scale.json. *Steps*: one full batch from the start, and how much the
training loss of a client that is alone falls, as a share of what it falls in FedAvg on the same net
(FedMN: in a pool of one module a layer). *Beds*: three beds of the suite with all defaults, at the
bed's learning rate; seeds 20 to 22, which the suite does not report, and validation data decide.
Test accuracies are stored beside them and chose nothing.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hidden_groups import CLIENTS, federation

from fedblocks.config.model import Config
from fedblocks.core.method import Method
from fedblocks.engines.lanes.lanes import Lanes
from fedblocks.engines.round import Evaluation, Experiment, evaluate, run_round
from fedblocks.engines.vectorised import Vectorised
from fedblocks.methods import METHODS
from fedblocks.nets import NETS
from fedblocks.recipes.suite.beds import BEDS
from fedblocks.reports.intervals import bootstrap_interval
from fedblocks.runs.build import prepare

OUT = Path("results/step-scale.json")
SEEDS = (20, 21, 22)
SCALES = ("printed", "mixture")
Options = Mapping[str, Any]
POOL: Options = {"widths": (64, 64), "dropout": 0.0, "pretrain_rounds": 2}
RESTING: Options = {"alpha_epochs": 0, "finetune": "none"}
# label -> method, options, and the label whose step is 1
STEPS: dict[str, tuple[str, Options, str]] = {
    "FedAvg": ("fedavg", {}, "FedAvg"),
    **{
        f"pFedMB, {count} branches, {scale}": (
            "pfedmb",
            {**RESTING, "branches": count, "lr_scale": scale},
            "FedAvg",
        )
        for count in (2, 5)
        for scale in SCALES
    },
    **{
        f"FedEM, {count} components, {scale}": (
            "fedem",
            {"components": count, "lr_scale": scale},
            "FedAvg",
        )
        for count in (2, 5)
        for scale in SCALES
    },
    "APFL": ("apfl", {}, "FedAvg"),
    "Flow, through the mixture": (
        "flow",
        {"local_epochs": 0, "router_epochs": 0, "global_update_path": "personalised"},
        "FedAvg",
    ),
    "Flow, alone": (
        "flow",
        {"local_epochs": 0, "router_epochs": 0, "global_update_path": "global_only"},
        "FedAvg",
    ),
    "DynamicRouting": ("dynamic_routing", {"tune_epochs": 0}, "FedAvg"),
    "FedMN, one module a layer": ("fedmn", {**POOL, "modules": (1, 1, 1)}, ""),
    **{
        f"FedMN, 2 x 4 x 4, {scale}": (
            "fedmn",
            {**POOL, "modules": (2, 4, 4), "lr_scale": scale},
            "FedMN, one module a layer",
        )
        for scale in SCALES
    },
}
MIXTURES = ("pfedmb", "fedem", "fedmn")
CHOSEN_BEDS = ("digits-groups", "hapt", "wisdm51")


def losses(name: str, options: Options, seed: int, lr: float) -> list[float]:
    """The training loss of each client after one step of its own, nobody else taking part."""
    net = NETS["mlp"]((1, 8, 8), 10, hidden=(64,))
    most = 200  # more rows than a client has: one batch
    method: Method = METHODS[name](net, lr=lr, batch_size=most, epochs=1, **options)
    setting = Experiment.of(method, federation(seed), seed, rounds=2)
    ends = []
    for client in range(0, CLIENTS, 5):
        state, _ = run_round(setting, setting.start(), [client], Vectorised())
        own = evaluate(setting, state, [client], Vectorised(), "train")["personal"][client]
        ends.append(own[2] / own[1])
    return ends


def falls(name: str, options: Options, seed: int) -> list[float]:
    """How much of the loss the steps take off; what else a round does (FedEM fits its mixture)
    happens also where steps are next to nothing.
    """
    rested, moved = (losses(name, options, seed, lr) for lr in (1e-7, 0.01))
    return [before - after for before, after in zip(rested, moved, strict=True)]


def steps() -> dict[str, Any]:
    falls_of = {
        label: np.array([falls(name, options, seed) for seed in SEEDS])  # [seeds, clients]
        for label, (name, options, _) in STEPS.items()
    }
    return {
        label: round(float((own / falls_of[STEPS[label][2] or label]).mean()), 3)
        for label, own in falls_of.items()
    }


def bed_run(bed: str, name: str, options: Options, seeds: Sequence[int] = SEEDS) -> dict[str, Any]:
    """All seeds at once: accuracies of every client."""
    prepared = [prepare(configuration(bed, name, options, seed)) for seed in seeds]
    runs = [one.experiment for one in prepared]
    lanes, engine = Lanes(runs), Vectorised()
    clients = [one.clients for one in prepared]
    states = [run.start() for run in runs]
    for _ in range(BEDS[bed].rounds):
        states = [state for state, _ in lanes.run_round(states, clients, engine)]
    ends = lanes.evaluate_parts(states, clients, engine, ["validation", "test"])
    return {part: [accuracies(end, part) for end in ends] for part in ("validation", "test")}


def configuration(bed: str, name: str, options: Options, seed: int) -> Config:
    table = BEDS[bed].config(name)
    data = {**table["data"], "seed": seed}
    method = {**table["method"], **options}
    return Config.of({**table, "seed": seed, "data": data, "method": method})


def accuracies(end: Evaluation, part: str) -> list[float]:
    counts = end.scores[part]["personal"]
    return [round(counts[c][0] / max(counts[c][1], 1), 5) for c in sorted(counts)]


def summary(runs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Means of both, and the gain of `mixture`, paired by client and seed."""
    rows: dict[str, Any] = {}
    for part in ("validation", "test"):
        both = [runs[scale][part] for scale in SCALES]
        printed, mixture = ([np.array(own) for own in one] for one in both)
        gains = [b - a for a, b in zip(printed, mixture, strict=True)]
        clients = min(map(len, gains))  # the same in all seeds
        gain = bootstrap_interval(np.stack([own[:clients] for own in gains]))
        mean = lambda one: round(float(np.mean([own.mean() for own in one])), 4)
        rows[part] = {"printed": mean(printed), "mixture": mean(mixture), "gain": vars(gain)}
    return rows


def stored() -> dict[str, Any]:
    known: dict[str, Any] = json.loads(OUT.read_text()) if OUT.exists() else {}
    return {"seeds": SEEDS, "steps": {}, "runs": {}, "beds": {}, **known}


def keep(results: dict[str, Any]) -> None:
    OUT.write_text(json.dumps(results, indent=1) + "\n")


def compare_on_beds(names: Sequence[str], beds: Sequence[str]) -> None:
    for name in names:
        for bed in beds:
            results = stored()
            key = f"{name}, {bed}"
            runs = results["runs"].setdefault(key, {})
            for scale in SCALES:
                if scale not in runs:
                    runs[scale] = bed_run(bed, name, {"lr_scale": scale})
            results["beds"][key] = summary(runs)
            keep(results)
            print(key, json.dumps(results["beds"][key]), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("steps", "beds"))
    parser.add_argument("--methods", default=",".join(MIXTURES))
    parser.add_argument("--beds", default=",".join(CHOSEN_BEDS))
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.what == "steps":
        keep({**stored(), "steps": steps()})
        print(json.dumps(stored()["steps"], indent=1))
    else:
        compare_on_beds(args.methods.split(","), args.beds.split(","))
