"""Do methods find the hidden groups, and does it help? Digits with a joint shift, 20 clients, 4
groups.

    python studies/hidden_groups.py [--processes 2]    writes results/hidden-groups.json (half an
    hour on 2 cores)

Every method gets the same tuning budget: twelve settings, each with three seeds; the one with the
best mean validation accuracy is reported, with its test accuracy. Differences are paired by client
and seed.

    python studies/hidden_groups.py --fresh            runs the settings chosen there with seeds
    that chose nothing
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedblocks.core.method import Method
from fedblocks.core.state import State
from fedblocks.data import dataset
from fedblocks.data.federation import Federation
from fedblocks.data.partitions import iid
from fedblocks.data.shifts import joint
from fedblocks.engines.round import Experiment, evaluate, run_round
from fedblocks.engines.vectorised import Vectorised
from fedblocks.methods import METHODS
from fedblocks.methods.fedmn import AS_PRINTED
from fedblocks.nets import NETS
from fedblocks.reports.groups import adjusted_rand, find_groups
from fedblocks.reports.intervals import bootstrap_interval

CLIENTS, GROUPS = 20, 4
SEEDS = (0, 1, 2)
FRESH = (10, 11, 12)  # never looked at while grids and the way of choosing were changed
RATES = (0.1, 0.3, 0.6, 1.0)
GRID: dict[str, dict[str, tuple[Any, ...]]] = {  # twelve settings each
    "local": {"lr": RATES, "epochs": (1, 3, 5)},
    "fedavg": {"lr": RATES, "epochs": (1, 3, 5)},
    "fedavg_ft": {"lr": RATES, "epochs": (3,), "tune_epochs": (1, 3, 5)},
    "fedper": {"lr": RATES, "epochs": (1, 3, 5)},
    "ditto": {"lr": RATES, "strength": (0.03, 0.1, 1.0), "epochs": (3,)},
    "ifca": {"lr": RATES, "epochs": (3,), "clusters": (4, 6, 8)},
    "clustered": {
        "lr": (0.1, 0.3, 0.6),
        "epochs": (3,),
        "epsilon1": (0.5, 1.0, 2.0, 4.0),
        "epsilon2": (0.1,),
        "first_round": (5,),
    },
    "fedem": {"lr": RATES, "epochs": (1, 3, 5), "components": (4,)},
    "modfl": {
        "lr": RATES,
        "epochs": (1, 3, 5),
        "operations": (4,),
        "cohorts": ("found",),
        "warmup": (5,),
    },
    "pfedmb": {
        "lr": (0.3, 0.6, 1.0),
        "alpha_lr": (0.3, 1.0, 3.0, 10.0),
        "epochs": (3,),
        "branches": (4,),
    },
    "fedmn": {
        "lr": (0.3, 0.6, 1.0),
        "gates": ("hard", "soft"),
        "modules": ((2, 2, 2), (2, 4, 4)),
        "router_lr": (1.0,),
        "epochs": (3,),
        "widths": ((64, 32),),
        "dropout": (0.0,),
    },
    "flow": {
        "lr": (0.1, 0.3, 0.6),
        "epochs": (3,),
        "global_update_path": ("personalised", "global_only"),
        "router_scope": ("federated", "local_reinit"),
    },
}


def federation(seed: int) -> Federation:
    pool = dataset("digits").load()
    built = Federation.from_arrays(
        pool.x,
        pool.y,
        iid(np.asarray(pool.y), CLIENTS, seed=seed),
        split=(0.6, 0.2, 0.2),
        seed=seed,
    )
    return joint(built, GROUPS, seed=seed, keep=0.6)


GATES = {
    "hard": {"gate_mode": "st_hard", "eval_gate": "mode"},
    "soft": {"gate_mode": "soft", "eval_gate": "soft"},
}


# Both read to the letter; studies/fedmn_routing.py and mixture_start.py are about their defaults.
LITERAL = {"start": "independent", "lr_scale": "printed"}
PRINTED: dict[str, Mapping[str, Any]] = {"fedmn": AS_PRINTED, "pfedmb": LITERAL}


def make(name: str, options: Mapping[str, Any]) -> Method:
    chosen = {k: v for k, v in options.items() if k != "gates"} | GATES.get(
        options.get("gates", ""), {}
    )
    net = NETS["mlp"]((1, 8, 8), 10, hidden=(64,))
    return METHODS[name](net, batch_size=16, **{**PRINTED.get(name, {}), **chosen})


def run(job: tuple[str, dict[str, Any], int], rounds: int = 60) -> dict[str, Any]:
    """One run: accuracies of all clients, and what describes each client to the method."""
    name, options, seed = job
    torch.set_num_threads(1)
    data = federation(seed)
    setting = Experiment.of(make(name, options), data, seed)
    state, everybody, engine = setting.start(), range(CLIENTS), Vectorised()
    for _ in range(rounds):
        state, _ = run_round(setting, state, everybody, engine)
    found = {
        part: accuracies(evaluate(setting, state, everybody, engine, part)["personal"])
        for part in ("validation", "test")
    }
    described = describe(name, setting, state)
    hidden = data.tags["group"].tolist()
    rand = None if described is None else adjusted_rand(hidden, groups_of(described))
    return {"name": name, "options": options, "seed": seed, **found, "rand": rand, "hidden": hidden}


def accuracies(counts: Mapping[int, tuple[float, float, float]]) -> list[float]:
    return [counts[c][0] / counts[c][1] for c in range(CLIENTS)]


def describe(name: str, setting: Experiment, state: State) -> np.ndarray | None:
    """What a method knows of each client: mixture weights, branch weights, gates,
    membership: [clients, numbers].
    """
    block = {"pfedmb": "alpha", "fedem": "mixture"}.get(name)
    method = setting.methods["all"]
    if block is not None:
        values = [state.private[c][block]["value"] for c in range(CLIENTS)]
        weights = [torch.softmax(v, -1) if name == "pfedmb" else v for v in values]
        return torch.stack(weights).flatten(1).double().numpy()
    if name in ("ifca", "fedmn"):
        job = setting.job("all", range(CLIENTS), state, [], False, "adapt")
        local = job.several(range(CLIENTS), torch.func.vmap)
        prepared = local.call(method.prepare, job.sent.blocks)
        if name == "ifca":
            return prepared["choice"]["value"].double().numpy()
        gates = local.call(method.portrait, prepared)["gates"]  # those that are used
        return gates.double().detach().numpy()
    if "membership" in state.server:
        return state.server["membership"]["value"].double().view(CLIENTS, -1).numpy()
    return None


def groups_of(described: np.ndarray) -> np.ndarray:
    """Clients that are described alike; whole-numbered descriptions are groups already."""
    distinct = np.unique(described.round(6), axis=0, return_inverse=True)[1]
    return (
        distinct
        if described.shape[1] == 1 or distinct.max() < GROUPS
        else find_groups(described, GROUPS)
    )


def settings(name: str) -> list[dict[str, Any]]:
    grid = GRID[name]
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


def study(processes: int, names: list[str]) -> dict[str, Any]:
    jobs = [(name, options, seed) for name in names for options in settings(name) for seed in SEEDS]
    with ProcessPoolExecutor(processes) as pool:
        runs = list(pool.map(run, jobs))
    best = {name: chosen([r for r in runs if r["name"] == name]) for name in names}
    return {name: summary(name, best[name], len(settings(name)), best) for name in names}


def confirm(processes: int, study: dict[str, Any]) -> dict[str, Any]:
    """The settings of a study, frozen, with fresh seeds."""
    options = {
        name: {k: tuple(v) if isinstance(v, list) else v for k, v in row["chosen"].items()}
        for name, row in study.items()
    }
    with ProcessPoolExecutor(processes) as pool:
        runs = list(
            pool.map(run, [(name, options[name], seed) for name in study for seed in FRESH])
        )
    best = {name: [r for r in runs if r["name"] == name] for name in study}
    return {name: summary(name, best[name], 1, best) for name in study}


def chosen(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The runs, one a seed, of the setting with the best validation accuracy over seeds
    and clients.
    """
    by_setting: dict[str, list[dict[str, Any]]] = {}
    for found in runs:
        by_setting.setdefault(json.dumps(found["options"]), []).append(found)
    return max(by_setting.values(), key=lambda found: np.mean([r["validation"] for r in found]))


def summary(
    name: str, runs: list[dict[str, Any]], tried: int, best: dict[str, list[dict[str, Any]]]
) -> dict[str, Any]:
    # [seeds, clients]
    test = {other: np.array([r["test"] for r in found]) for other, found in best.items()}
    versus = {
        f"minus_{o}": vars(bootstrap_interval(test[name] - test[o]))
        for o in ("local", "fedavg")
        if o in test and o != name
    }
    rand = None if runs[0]["rand"] is None else [round(float(r["rand"]), 3) for r in runs]
    mean = round(float(test[name].mean()), 4)
    return {
        "chosen": runs[0]["options"],
        "settings_tried": tried,
        "mean": mean,
        "rand": rand,
        **versus,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--methods", default=",".join(GRID))
    parser.add_argument("--out", type=Path, default=Path("results/hidden-groups.json"))
    args = parser.parse_args()
    if args.fresh:
        found = confirm(args.processes, json.loads(args.out.read_text()))
        args.out = args.out.with_name("hidden-groups-fresh.json")
    else:
        found = study(args.processes, args.methods.split(","))
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    for name, row in found.items():
        gains = " ".join(
            f"{k} {v['low']:+.3f}..{v['high']:+.3f}"
            for k, v in row.items()
            if k.startswith("minus")
        )
        print(f"{name:10s} {row['mean']:.3f} rand {row['rand']} {gains}", row["chosen"])
