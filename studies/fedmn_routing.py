"""Does FedMN's routing work, and does learning it help? Digits with hidden groups, 20 clients.

    python studies/fedmn_routing.py search     tries settings with seeds 0, 1 and 2, by validation
    python studies/fedmn_routing.py fresh      runs the chosen ones with twelve fresh seeds

Both add to results/fedmn-routing.json. Data, net and rounds are those of studies/hidden_groups.py.
Runs of several seeds are lanes of one stack, for which every module is sent to everybody: the
numbers are those of FedMN, traffic is not measured. Paths and Rand indices are of the gates that
clients really use: edges between the input and the prediction. FedMN has the defaults of that time,
and a head that learned saw 32 examples in a step; today it sees all of them once a round.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hidden_groups import CLIENTS, federation
from seed_runs import PARTS, run_seeds
from torch import Tensor

from fedblocks.config.options import plain
from fedblocks.core.blocks import Block, Pool
from fedblocks.core.client import Client
from fedblocks.core.method import Method
from fedblocks.core.parts import Blocks
from fedblocks.core.schedules import Ramp
from fedblocks.data.federation import Federation
from fedblocks.engines.round import Evaluation
from fedblocks.methods import METHODS
from fedblocks.methods.fedmn import AS_PRINTED, FedMN
from fedblocks.methods.fedmn.gates import matrices
from fedblocks.nets import NETS
from fedblocks.reports.groups import adjusted_rand
from fedblocks.reports.intervals import bootstrap_interval

ROUNDS = 60
SEEDS = (0, 1, 2)
FRESH = tuple(range(100, 112))  # chose nothing
OUT = Path("results/fedmn-routing.json")
Options = Mapping[str, Any]
# what were FedMN's defaults at that time
EARLIER: Options = {
    "module_start": "independent",
    "lr_scale": "printed",
    "router_start": "drawn",
    "gate_noise": Ramp(1.0, 0.0, 0.5),
}
POOL: Options = {
    **EARLIER,
    "modules": (1, 8),
    "widths": (64,),
    "dropout": 0.0,
    "summary_width": 32,
    "label_width": 16,
    "router_samples": 32,
    "epochs": 5,
}
HEAD: Options = {**POOL, "lr": 0.3, "router_lr": 1.0}
FROZEN: Options = {**POOL, "lr": 0.3, "train_router": "nothing"}
SIZES: Options = {"modules": POOL["modules"], "widths": POOL["widths"]}
PRINTED: Options = {**POOL, **AS_PRINTED, **SIZES, "lr": 0.3, "router_lr": 1.0}
RAW: Options = {"unit_length": False, "router_relu": False}
SEARCH: dict[str, Options] = {
    "head": HEAD,
    "head, router_lr 0.1": {**HEAD, "router_lr": 0.1},
    "head, no noise": {**HEAD, "gate_noise": 0.0},
    "head, 10 open rounds": {**HEAD, "pretrain_rounds": 10},
    "head, 4 outputs": {**HEAD, "modules": (1, 4)},
    "head, joint reading": {**HEAD, **RAW, "reading": "joint"},
    "whole router, router_lr 0.1": {**HEAD, "train_router": "all", "router_lr": 0.1},
    "whole router, lr 0.6, router_lr 3": {
        **HEAD,
        "train_router": "all",
        "lr": 0.6,
        "router_lr": 3.0,
    },
    "frozen": FROZEN,
    "frozen, lr 0.6": {**FROZEN, "lr": 0.6},
    "frozen, raw summaries": {**FROZEN, **RAW},
    "frozen, joint reading": {**FROZEN, **RAW, "reading": "joint"},
    "printed": PRINTED,
    "printed, lr 0.6": {**PRINTED, "lr": 0.6},
}
# fedmn and frozen: the best validation accuracy of the search; local and fedavg: chosen of twelve
# settings each in studies/hidden_groups.py
CHOSEN: dict[str, tuple[str, Options]] = {
    "local": ("local", {"lr": 0.3, "epochs": 1}),
    "fedavg": ("fedavg", {"lr": 0.6, "epochs": 5}),
    "fedmn": ("fedmn", {**HEAD, "gate_noise": 0.0}),
    "frozen": ("fedmn", FROZEN),
    "printed": ("fedmn", PRINTED),
}


@dataclass(frozen=True, eq=False)
class FedMNInLanes(FedMN):
    """The same models without requests in the middle of a round, which lanes do not have."""

    def blocks(self) -> dict[str, Block]:
        layout = super().blocks().items()
        return {n: replace(b, on_request=False) if isinstance(b, Pool) else b for n, b in layout}

    def wants(self, blocks: Blocks, client: Client) -> dict[str, Tensor]:
        return {}

    def writes(self, blocks: Blocks, client: Client) -> dict[str, Tensor]:
        sent = self.sent(matrices(blocks["gates"]["value"], self.modules))
        later = zip(self.layers[1:], sent[1:-1], strict=True)
        return {name: mask * client.size for name, mask in later}


@cache
def data_of(seed: int) -> Federation:
    return federation(seed)


def make(name: str, options: Options) -> Method:
    kind = FedMNInLanes if name == "fedmn" else METHODS[name]
    method: Method = kind(NETS["mlp"]((1, 8, 8), 10, hidden=(64,)), batch_size=16, **options)
    return method.over(ROUNDS)


def run(name: str, options: Options, seeds: Sequence[int]) -> dict[str, Any]:
    """All seeds at once: accuracies of every client, and the paths they use."""
    runs = run_seeds(make(name, options), data_of, seeds, ROUNDS)
    return {
        "method": name,
        "options": {key: plain(value) for key, value in options.items()},
        "seeds": list(seeds),
        **{part: runs.accuracies(part) for part in PARTS},
        **paths(runs.ends, seeds),
        "seconds": runs.seconds,
    }


def paths(seen: Sequence[Evaluation], seeds: Sequence[int]) -> dict[str, Any]:
    """How many paths there are, and how well they match the hidden groups: both one number a
    seed.
    """
    if "gates" not in seen[0].portraits:
        return {}
    gates = [np.array([one.portraits["gates"][c] for c in range(CLIENTS)]) for one in seen]
    path_of = [np.unique(g, axis=0, return_inverse=True)[1].ravel() for g in gates]
    hidden = [data_of(seed).tags["group"].tolist() for seed in seeds]
    rand = [float(adjusted_rand(h, p)) for h, p in zip(hidden, path_of, strict=True)]
    return {"paths": [int(p.max()) + 1 for p in path_of], "rand": [round(r, 3) for r in rand]}


def mean(result: Mapping[str, Any], part: str) -> float:
    return round(float(np.mean(result[part])), 4)


def summary(name: str, results: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Means, and differences paired by client and seed with 95 % intervals."""
    seeds, test = results[name]["seeds"], np.array(results[name]["test"])  # [seeds, clients]
    versus = {}
    for other in results.keys() - {name}:
        both = [seed for seed in seeds if seed in results[other]["seeds"]]
        theirs = dict(zip(results[other]["seeds"], results[other]["test"], strict=True))
        mine = test[[seeds.index(seed) for seed in both]]
        gain = bootstrap_interval(mine - np.array([theirs[seed] for seed in both]))
        versus[f"minus_{other}"] = {**vars(gain), "seeds": len(both)}
    return {"mean": mean(results[name], "test"), **dict(sorted(versus.items()))}


def stored() -> dict[str, Any]:
    known: dict[str, Any] = json.loads(OUT.read_text()) if OUT.exists() else {}
    return {"rounds": ROUNDS, "clients": CLIENTS, "search": {}, "fresh": {}, **known}


def search(names: Sequence[str]) -> None:
    for name in names:
        results = stored()
        result = run("fedmn", SEARCH[name], SEEDS)
        results["search"][name] = {
            **{k: v for k, v in result.items() if k not in ("validation", "test")},
            "validation": mean(result, "validation"),
            "test": mean(result, "test"),
        }
        OUT.write_text(json.dumps(results, indent=1) + "\n")
        print(name, results["search"][name], flush=True)


def fresh(names: Sequence[str], seeds: int) -> None:
    for name in names:
        results = stored()
        results["fresh"][name] = run(*CHOSEN[name], FRESH[:seeds])
        known = results["fresh"]
        results["summary"] = {one: summary(one, known) for one in known}
        OUT.write_text(json.dumps(results, indent=1) + "\n")
        print(name, known[name].get("paths"), known[name].get("rand"), flush=True)
        print(json.dumps(results["summary"][name]), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("search", "fresh"))
    parser.add_argument("--only", help="names of settings, with ; between them")
    parser.add_argument(
        "--seeds", type=int, default=len(FRESH), help="of the fresh ones, the first"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    known = SEARCH if args.what == "search" else CHOSEN
    chosen = args.only.split(";") if args.only else list(known)
    if args.what == "search":
        search(chosen)
    else:
        fresh(chosen, args.seeds)
