"""Twelve fresh seeds of the digits with hidden groups: what methods gain over Local and FedAvg.

    python studies/fresh_groups.py search    pFedMB and Flow by validation, seeds 0, 1 and 2
    python studies/fresh_groups.py fresh     frozen settings, seeds 100 to 111
    python studies/fresh_groups.py summary   means and gains of all that were run

They add to results/hidden-groups-twelve.json. Data, net and rounds are those of
studies/hidden_groups.py; runs of several seeds are lanes of one stack. Local, FedAvg and FedMN were
run with the same twelve seeds by studies/fedmn_routing.py and fedmn_start.py, from whose files they
are taken.

Local, FedAvg and FedAvg+ have the settings that hidden_groups.py chose with seeds 0 to 2. IFCA,
Clustered FL and ModFL have those of studies/found_clusters.py, where nothing was tuned; that study
had run them, for 30 rounds, with eight of these seeds. Nobody tells them how many groups there are.
pFedMB and Flow have the best validation accuracy of the search here. No setting was changed after a
run with these seeds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fedmn_routing import data_of
from fedmn_routing import stored as stored_routing
from fedmn_start import stored as stored_start
from flow_defaults import POSTER
from hidden_groups import CLIENTS, GROUPS, describe, groups_of
from seed_runs import PARTS, run_seeds

from fedblocks.core.method import Method
from fedblocks.core.state import State
from fedblocks.engines.round import Experiment
from fedblocks.methods import METHODS
from fedblocks.nets import NETS
from fedblocks.reports.groups import adjusted_rand
from fedblocks.reports.intervals import bootstrap_interval

ROUNDS = 60
SEEDS = (0, 1, 2)
FRESH = tuple(range(100, 112))
OUT = Path("results/hidden-groups-twelve.json")
Options = Mapping[str, Any]
Setting = tuple[str, Options]
BRANCHES: Options = {"branches": 4, "alpha_lr": 3.0, "epochs": 3}
TUNED_COPY: Options = {"epochs": 3, "global_update_path": "global_only", "router_epochs": 3}
SEARCH: dict[str, Setting] = {
    "pfedmb, printed, lr 0.6": ("pfedmb", {**BRANCHES, "lr_scale": "printed", "lr": 0.6}),
    "pfedmb, mixture, lr 0.3": ("pfedmb", {**BRANCHES, "lr_scale": "mixture", "lr": 0.3}),
    "pfedmb, mixture, lr 0.15": ("pfedmb", {**BRANCHES, "lr_scale": "mixture", "lr": 0.15}),
    "flow, poster": ("flow", {"epochs": 3, "lr": 0.3, **POSTER}),
    "flow, lr 0.3": ("flow", {**TUNED_COPY, "lr": 0.3, "local_epochs": 10}),
    "flow, lr 0.3, 1 local epoch": ("flow", {**TUNED_COPY, "lr": 0.3, "local_epochs": 1}),
    "flow, lr 0.3, own router": (
        "flow",
        {**TUNED_COPY, "lr": 0.3, "local_epochs": 10, "router_scope": "local_reinit"},
    ),
    "flow, lr 0.6": ("flow", {**TUNED_COPY, "lr": 0.6, "local_epochs": 10}),
    "flow_v2, lr 0.3": ("flow_v2", {"epochs": 3, "lr": 0.3}),
    "flow_v2, lr 0.3, soft, 10 local epochs": (
        "flow_v2",
        {"epochs": 3, "lr": 0.3, "eval_routing": "soft", "split_data": False, "local_epochs": 10},
    ),
}
UPDATES: Options = {"lr": 0.3, "epochs": 3, "start": "updates"}
CHOSEN: dict[str, Setting] = {
    "fedavg_ft": ("fedavg_ft", {"lr": 0.6, "epochs": 3, "tune_epochs": 5}),
    # Flow's work before a use: ten epochs for the copy, three for the router
    "fedavg_ft, equal work": ("fedavg_ft", {"lr": 0.3, "epochs": 3, "tune_epochs": 13}),
    "pfedmb": SEARCH["pfedmb, printed, lr 0.6"],
    "flow": SEARCH["flow, lr 0.3"],
    "ifca": ("ifca", {**UPDATES, "clusters": "auto"}),
    "clustered": (
        "clustered",
        {**UPDATES, "epsilon1": 0.5, "epsilon2": 0.1, "never_split": True},
    ),
    "modfl": ("modfl", {**UPDATES, "operations": "auto", "cohorts": "found"}),
}


def make(name: str, options: Options) -> Method:
    net = NETS["mlp"]((1, 8, 8), 10, hidden=(64,))
    method: Method = METHODS[name](net, batch_size=16, **options)
    return method.over(ROUNDS)


def run(name: str, options: Options, seeds: Sequence[int]) -> dict[str, Any]:
    """All seeds at once: accuracies of every client, and how well groups were found."""
    runs = run_seeds(make(name, options), data_of, seeds, ROUNDS)
    return {
        "method": name,
        "options": dict(options),
        "seeds": list(seeds),
        **{part: runs.accuracies(part) for part in PARTS},
        **rand_indices(name, runs.experiments, runs.states),
        "seconds": runs.seconds,
    }


def rand_indices(
    name: str, runs: Sequence[Experiment], states: Sequence[State]
) -> dict[str, list[float]]:
    """Of the groups that the method found, one number a seed; nothing if it finds none."""
    described = [describe(name, one, state) for one, state in zip(runs, states, strict=True)]
    if described[0] is None:
        return {}
    hidden = [one.data.tags["group"].tolist() for one in runs]
    homes = [groups_of(own) for own in described if own is not None]
    rand = [adjusted_rand(own, home) for own, home in zip(hidden, homes, strict=True)]
    return {"rand": [round(float(one), 3) for one in rand]}


def stored() -> dict[str, Any]:
    known: dict[str, Any] = json.loads(OUT.read_text()) if OUT.exists() else {}
    about = {"rounds": ROUNDS, "clients": CLIENTS, "groups": GROUPS}
    return {**about, "search": {}, "fresh": {}, **known}


def keep(results: dict[str, Any]) -> None:
    OUT.write_text(json.dumps(results, indent=1) + "\n")


def search(names: Sequence[str]) -> None:
    for name in names:
        result = run(*SEARCH[name], SEEDS)
        means = {part: round(float(np.mean(result[part])), 4) for part in PARTS}
        results = stored()
        results["search"][name] = {**result, **means}
        keep(results)
        print(name, means, result.get("rand"), result["seconds"], flush=True)


def fresh(names: Sequence[str]) -> None:
    for name in names:
        result = run(*CHOSEN[name], FRESH)
        results = stored()
        results["fresh"][name] = result
        summarise(results)
        print(name, result.get("rand"), result["seconds"], results["summary"][name], flush=True)


def summarise(results: dict[str, Any]) -> None:
    """All methods that ran with these seeds, here or in the studies of FedMN."""
    routing = stored_routing()["fresh"]
    known = {n: routing[n] for n in ("local", "fedavg")} | results["fresh"]
    known["fedmn"] = stored_start()["fresh"]["digits"]["defaults"]
    results["summary"] = {one: summary(one, known) for one in known}
    keep(results)


def summary(name: str, known: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The mean, and gains paired by client and seed with 95 % intervals."""
    test = {n: np.array(one["test"]) for n, one in known.items()}  # [seeds, clients]
    references = ("local", "fedavg", "fedavg_ft", "fedavg_ft, equal work")
    others = [n for n in references if n in test and n != name]
    gains = {f"minus_{n}": vars(bootstrap_interval(test[name] - test[n])) for n in others}
    found = {key: known[name][key] for key in ("rand", "paths") if key in known[name]}
    options = {"options": known[name]["options"]}
    return {"mean": round(float(test[name].mean()), 4), **gains, **found, **options}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("search", "fresh", "summary"))
    parser.add_argument("--only", help="names of settings, with ; between them")
    args = parser.parse_args()
    torch.set_num_threads(1)
    todo = SEARCH if args.what == "search" else CHOSEN
    names = args.only.split(";") if args.only else list(todo)
    if args.what == "summary":
        summarise(stored())
    else:
        (search if args.what == "search" else fresh)(names)
