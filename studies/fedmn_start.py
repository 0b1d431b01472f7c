"""Does learned routing beat a router that stays as drawn? Two more ideas, on two data sets.

    FEDBLOCKS_DATA=... python studies/fedmn_start.py search    settings, by validation, seeds 0 to 2
    FEDBLOCKS_DATA=... python studies/fedmn_start.py fresh     frozen ones, with twelve fresh seeds

Both add to results/fedmn-start.json. The ideas: a routing head that starts from groups of first
updates (`router_start = "updates"`; as a control, one that then rests), and rounds that alternate
between modules and router. Data: the digits of studies/fedmn_routing.py, from whose file the frozen
router, Local and FedAvg with the same fresh seeds are taken (60 rounds), and MNIST turned by 0, 90,
180 or 270 degrees, at 14 x 14 pixels (24 clients with 100 training images each, 12 rounds). Every
router gets the same rates to choose from on MNIST; on the digits the rate is that of the frozen
router there. "defaults" is FedMN as it is today; the others have the defaults of their time.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import fedmn_routing as routing
import numpy as np
import torch
import torch.nn.functional as F
from found_clusters import turned_images
from seed_runs import PARTS, run_seeds

from fedblocks.core.method import Method
from fedblocks.data.federation import Federation
from fedblocks.engines.round import Evaluation
from fedblocks.methods import METHODS
from fedblocks.nets import NETS
from fedblocks.reports.groups import adjusted_rand
from fedblocks.reports.intervals import bootstrap_interval

SEEDS = (0, 1, 2)
OUT = Path("results/fedmn-start.json")
Options = Mapping[str, Any]
STILL = 1e-6  # of a learning rate: as good as none


@dataclass(frozen=True)
class Alternating:
    """A learning rate in every second round."""

    rate: float
    first: int  # 0: in even rounds, 1: in odd ones

    def __call__(self, round: Any) -> Any:
        acts = round % 2 == self.first
        return self.rate * (acts * (1 - STILL) + STILL)


@dataclass(frozen=True)
class Bed:
    """Data by seed, and how long clients train on them."""

    data: Callable[[int], Federation]
    shape: tuple[int, ...]
    rounds: int
    epochs: int
    rates: Sequence[float]
    fresh: Sequence[int]


@cache
def small_images(seed: int) -> Federation:
    """Turned MNIST as means of 2 x 2 pixels."""
    whole = turned_images(seed)
    return replace(whole, x=F.avg_pool2d(torch.as_tensor(whole.x), 2))


BEDS = {
    "digits": Bed(routing.data_of, (1, 8, 8), 60, 5, (0.3,), routing.FRESH),
    "mnist, turned": Bed(small_images, (1, 14, 14), 12, 3, (0.1, 0.3), range(200, 212)),
}
QUIET: Options = {**routing.POOL, "gate_noise": 0.0}
ROUTERS: dict[str, Callable[[float], Options]] = {
    "defaults": lambda lr: {"lr": lr},
    "frozen": lambda lr: {**routing.POOL, "lr": lr, "train_router": "nothing"},
    "learned": lambda lr: {**QUIET, "lr": lr, "router_lr": 1.0},
    "updates": lambda lr: {**QUIET, "lr": lr, "router_lr": 1.0, "router_start": "updates"},
    "updates, slow": lambda lr: {**QUIET, "lr": lr, "router_lr": 0.1, "router_start": "updates"},
    "updates, then rests": lambda lr: {
        **QUIET,
        "lr": lr,
        "router_lr": STILL,
        "router_start": "updates",
    },
    "alternating": lambda lr: {
        **QUIET,
        "lr": Alternating(lr, 0),
        "router_lr": Alternating(1.0, 1),
    },
}
PLAIN = ("local", "fedavg")  # on MNIST, with the same rates


def make(bed: Bed, router: str, lr: float) -> Method:
    net = NETS["mlp"](bed.shape, 10, hidden=(64,))
    common = {"batch_size": 16, "epochs": bed.epochs}
    if router in PLAIN:
        return METHODS[router](net, lr=lr, **common)
    method: Method = routing.FedMNInLanes(net, **ROUTERS[router](lr), **common)
    return method.over(bed.rounds)


def run(bed: Bed, router: str, lr: float, seeds: Sequence[int]) -> dict[str, Any]:
    """All seeds at once: accuracies of every client, and the paths they use."""
    runs = run_seeds(make(bed, router, lr), bed.data, seeds, bed.rounds)
    return {
        "router": router,
        "lr": lr,
        "options": {"lr": lr, "epochs": bed.epochs},  # besides those of the router
        "seeds": list(seeds),
        **{part: runs.accuracies(part) for part in PARTS},
        **paths(runs.ends, [one.data for one in runs.experiments]),
        "seconds": runs.seconds,
    }


def paths(ends: Sequence[Evaluation], data: Sequence[Federation]) -> dict[str, Any]:
    """How many paths there are, and how well they match the hidden groups: one number a seed."""
    if "gates" not in ends[0].portraits:
        return {}
    gates = [
        np.array([end.portraits["gates"][c] for c in sorted(end.portraits["gates"])])
        for end in ends
    ]
    path_of = [np.unique(own, axis=0, return_inverse=True)[1].ravel() for own in gates]
    hidden = [one.tags["group"].tolist() for one in data]
    rand = [float(adjusted_rand(h, p)) for h, p in zip(hidden, path_of, strict=True)]
    return {"paths": [int(p.max()) + 1 for p in path_of], "rand": [round(r, 3) for r in rand]}


def mean(result: Mapping[str, Any], part: str) -> float:
    return round(float(np.mean(result[part])), 4)


def stored() -> dict[str, Any]:
    known: dict[str, Any] = json.loads(OUT.read_text()) if OUT.exists() else {}
    return {"search": {}, "fresh": {}, "summary": {}, **known}


def keep(results: dict[str, Any]) -> None:
    OUT.write_text(json.dumps(results, indent=1) + "\n")


def search(bed: str, router: str) -> None:
    for lr in BEDS[bed].rates:
        result = run(BEDS[bed], router, lr, SEEDS)
        means = {part: mean(result, part) for part in ("validation", "test")}
        results = stored()
        results["search"].setdefault(bed, {})[f"{router}, lr {lr:g}"] = {**result, **means}
        keep(results)
        row = {k: v for k, v in result.items() if k in ("paths", "rand", "seconds")}
        print(bed, router, lr, means, row, flush=True)


def chosen_rate(bed: str, router: str) -> float:
    """The rate with the best validation accuracy."""
    rows = [row for row in stored()["search"][bed].values() if row["router"] == router]
    return float(max(rows, key=lambda row: row["validation"])["lr"])


def fresh(bed: str, router: str, seeds: int) -> None:
    result = run(BEDS[bed], router, chosen_rate(bed, router), BEDS[bed].fresh[:seeds])
    results = stored()
    known = results["fresh"].setdefault(bed, {})
    known[router] = result
    older = routing.stored()["fresh"] if bed == "digits" else {}
    older = {n: older[n] for n in ("local", "fedavg", "frozen", "fedmn") if n in older}
    everything = {**older, **known}
    results["summary"][bed] = {one: summary(one, everything) for one in everything}
    keep(results)
    print(bed, router, result["seconds"], json.dumps(results["summary"][bed][router]), flush=True)


def summary(name: str, known: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Means, and differences paired by client and seed with 95 % intervals."""
    test = {n: dict(zip(one["seeds"], one["test"], strict=True)) for n, one in known.items()}
    gains = {}
    for other in sorted(test.keys() - {name}):
        both = sorted(test[name].keys() & test[other].keys())
        gain = np.array([np.subtract(test[name][s], test[other][s]) for s in both])
        gains[f"minus_{other}"] = {**vars(bootstrap_interval(gain)), "seeds": len(both)}
    found = {key: known[name][key] for key in ("paths", "rand") if key in known[name]}
    return {"mean": mean(known[name], "test"), **found, **gains}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("search", "fresh"))
    parser.add_argument("--bed", choices=tuple(BEDS), default="digits")
    parser.add_argument("--only", default=";".join(ROUTERS), help="routers, with ; between them")
    parser.add_argument("--seeds", type=int, default=12, help="of the fresh ones, the first")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name in args.only.split(";"):
        if args.what == "search":
            search(args.bed, name)
        else:
            fresh(args.bed, name, args.seeds)
