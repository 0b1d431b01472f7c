"""Does Flow's routing of instances help where a client's test data are part its own, part others'?

    FEDBLOCKS_DATA=... python studies/flow_routing.py search    settings, seeds 0, 1 and 2
    FEDBLOCKS_DATA=... python studies/flow_routing.py fresh     frozen ones, seeds 200 to 211

Both add to results/flow-routing.json. Ten clients share MNIST at 14 x 14 pixels. Each has two
digits of its own: of 60 training images 48 are of these, 12 of any digit. It is asked 50 images of
its own two digits and 50 of any. So a tuned copy should do better on the first half and the shared
net on the second, and a router that tells them apart better than either. The search has images of
MNIST's training writers, the fresh seeds those of its test writers. Settings are chosen by the mean
over both halves; the list of seeds was written down before anything was run.

FedAvg+ has Flow's local work: before a use it is tuned for as many epochs as Flow tunes copy and
router together, and in one more row it also trains as long as Flow in each round.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from flow_defaults import POSTER
from seed_runs import run_seeds

from fedblocks.core.local_round import step_by_step, train
from fedblocks.core.method import Method
from fedblocks.core.parts import Blocks
from fedblocks.core.state import State
from fedblocks.data import dataset
from fedblocks.data.federation import Federation
from fedblocks.data.rows import Rows
from fedblocks.engines.batching import steps_of_one
from fedblocks.engines.round import Experiment
from fedblocks.methods import METHODS
from fedblocks.methods.flow.base import Routed
from fedblocks.nets import NETS
from fedblocks.reports.intervals import bootstrap_interval

SEEDS = (0, 1, 2)
FRESH = tuple(range(200, 212))  # chose nothing
ROUNDS, CLIENTS, CLASSES = 20, 10, 10
TRAIN, ANY, ASKED = 60, 12, 50  # images of a client; of any digit among them; asked of each kind
OUT = Path("results/flow-routing.json")
HALVES = {"own": "validation", "any": "test"}  # where a federation keeps the two halves
Options = Mapping[str, Any]
Setting = tuple[str, Options]
TRAINED: Options = {"lr": 0.3, "epochs": 2}
ALONE: Options = {**TRAINED, "global_update_path": "global_only", "router_epochs": 3}
HALVED: Options = {
    **ALONE,
    "local_epochs": 10,
    "router_epochs": 20,
    "router_scope": "local_reinit",
    "split_adaptation": True,
}
SMALL: Options = {**TRAINED, "policy": (64, 32), "router_epochs": 3}
SEARCH: dict[str, Setting] = {
    "fedavg": ("fedavg", TRAINED),
    "fedavg, lr 0.1": ("fedavg", {**TRAINED, "lr": 0.1}),
    "fedavg_ft, 1 epoch": ("fedavg_ft", {**TRAINED, "tune_epochs": 1}),
    "fedavg_ft, 4 epochs": ("fedavg_ft", {**TRAINED, "tune_epochs": 4}),
    "fedavg_ft, 13 epochs": ("fedavg_ft", {**TRAINED, "tune_epochs": 13}),
    "flow, 1 local epoch": ("flow", {**ALONE, "local_epochs": 1}),
    "flow, 10 local epochs": ("flow", {**ALONE, "local_epochs": 10}),
    "flow, 10 local epochs, own router": (
        "flow",
        {**ALONE, "local_epochs": 10, "router_scope": "local_reinit"},
    ),
    **{
        f"flow, 10 local epochs, halves, {more}": ("flow", {**HALVED, **options})
        for more, options in {
            "3 router epochs": {"router_epochs": 3},
            "20 router epochs": {},
            "20 router epochs, hard": {"eval_routing": "hard"},
            "60 router epochs": {"router_epochs": 60},
            "20 router epochs, shared router": {"router_scope": "federated", "split_data": True},
        }.items()
    },
    "flow, 4 local epochs, halves, 20 router epochs": ("flow", {**HALVED, "local_epochs": 4}),
    # a control: the router stays as it was drawn, all routes are about even
    "flow, 10 local epochs, even routes": (
        "flow",
        {**ALONE, "local_epochs": 10, "router_scope": "local_reinit", "router_epochs": 0},
    ),
    "flow, poster": ("flow", {**TRAINED, **POSTER}),
    "flow_v2, 3 local epochs": ("flow_v2", {**SMALL, "local_epochs": 3}),
    "flow_v2, 10 local epochs, soft": (
        "flow_v2",
        {**SMALL, "local_epochs": 10, "eval_routing": "soft"},
    ),
    **{
        f"flow_v2, 10 local epochs, soft, halves, {more} router epochs": (
            "flow_v2",
            {
                **SMALL,
                "local_epochs": 10,
                "eval_routing": "soft",
                "split_adaptation": True,
                "router_epochs": more,
            },
        )
        for more in (3, 20)
    },
}
# The best of the search for FedAvg+, Flow and its second version; equal work; and controls
CHOSEN: dict[str, Setting] = {
    "fedavg": SEARCH["fedavg"],
    "fedavg_ft": SEARCH["fedavg_ft, 4 epochs"],
    "fedavg_ft, equal work": SEARCH["fedavg_ft, 13 epochs"],
    "fedavg_ft, equal work in rounds, too": (
        "fedavg_ft",
        {**TRAINED, "epochs": 12, "tune_epochs": 13},
    ),
    "flow": SEARCH["flow, 10 local epochs, halves, 3 router epochs"],
    "flow, whole data": SEARCH["flow, 10 local epochs, own router"],
    "flow, even routes": SEARCH["flow, 10 local epochs, even routes"],
    "flow, poster": SEARCH["flow, poster"],
    "flow_v2": SEARCH["flow_v2, 10 local epochs, soft, halves, 3 router epochs"],
}


@cache
def images(part: str) -> tuple[Any, Any]:
    """MNIST as means of 2 x 2 pixels."""
    pool = dataset("mnist_writers").load(part=part)
    return F.avg_pool2d(torch.as_tensor(pool.x), 2), torch.as_tensor(pool.y)


@cache
def in_and_out(seed: int) -> Federation:
    """Each client's own two digits, and any; no image is used twice."""
    x, y = images("train" if seed in SEEDS else "test")
    draw = np.random.Generator(np.random.PCG64(seed))
    left = draw.permutation(len(y)).tolist()
    label = np.asarray(y)
    apart = int(draw.integers(1, CLASSES // 2))

    def take(count: int, digits: Sequence[int]) -> list[int]:
        rows = [row for row in left if label[row] in digits][:count]
        left[:] = [row for row in left if row not in set(rows)]
        return rows

    parts: dict[str, list[np.ndarray]] = {"train": [], "own": [], "any": []}
    for client in range(CLIENTS):
        own = (client, (client + apart) % CLASSES)
        rows = take(TRAIN - ANY, own) + take(ANY, range(CLASSES))
        parts["train"].append(draw.permutation(rows))  # Flow's halves are the first and the second
        parts["own"].append(np.array(take(ASKED, own)))
        parts["any"].append(np.array(take(ASKED, range(CLASSES))))
    train, own, every = (Rows.of(parts[name]) for name in ("train", "own", "any"))
    return Federation(x, y, train, own, every, classes=CLASSES).compact()


def make(name: str, options: Options) -> Method:
    net = NETS["mlp"]((1, 14, 14), CLASSES, hidden=(64,))
    method: Method = METHODS[name](net, batch_size=16, **options)
    return method.over(ROUNDS)


def run(name: str, options: Options, seeds: Sequence[int]) -> dict[str, Any]:
    """All seeds at once: accuracies of every client on both halves, and its routes."""
    runs = run_seeds(make(name, options), in_and_out, seeds, ROUNDS, list(HALVES.values()))
    ended = zip(runs.experiments, runs.states, strict=True)
    routes = [local_routes(experiment, state) for experiment, state in ended]
    return {
        "method": name,
        "options": dict(options),
        "seeds": list(seeds),
        **{half: runs.accuracies(part) for half, part in HALVES.items()},
        **({"local_route": routes} if routes[0] else {}),
        "seconds": runs.seconds,
    }


def local_routes(setting: Experiment, state: State) -> list[dict[str, float]]:
    """For each client, how much of the local branch is in its answers: to images of its own two
    digits (of both halves), and to others.
    """
    method = setting.methods["all"]
    if not isinstance(method, Routed):
        return []
    data, shares = setting.data, []
    for client in range(CLIENTS):
        blocks = adapt(setting, state, client)
        rows = np.concatenate([data.validation[client], data.test[client]])
        own_digits = np.unique(data.y[data.validation[client]])
        is_own = np.isin(data.y[rows], own_digits)
        with torch.no_grad():
            local = method.routes(blocks, data.x[rows])[:, 1].numpy()  # [images]
        shares.append({"own": float(local[is_own].mean()), "other": float(local[~is_own].mean())})
    return shares


def adapt(setting: Experiment, state: State, client: int) -> Blocks:
    """What a client holds when it is asked."""
    method = setting.methods["all"]
    job = setting.job("all", [client], state, method.adaptation(), False, "adapt")
    local = job.one(0)
    blocks = {n: {k: v[0] for k, v in b.items()} for n, b in job.sent.blocks.items()}
    orders = [steps_of_one(actual, job.device) for actual in job.batches[0]]
    return train(job.phases, local.call(method.prepare, blocks), local, orders, step_by_step)


def means(result: Mapping[str, Any]) -> dict[str, Any]:
    halves = {half: round(float(np.mean(result[half])), 4) for half in HALVES}
    both = round(float(np.mean(list(halves.values()))), 4)
    routes = [own for one in result.get("local_route", ()) for own in one]
    kinds = {f"route_{kind}": [own[kind] for own in routes] for kind in ("own", "other")}
    return {
        **halves,
        "both": both,
        **{kind: round(float(np.mean(shares)), 3) for kind, shares in kinds.items() if shares},
    }


def summary(name: str, known: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Means, and gains over all others paired by client and seed, with 95 % intervals."""
    # [seeds, clients]
    both = {n: (np.array(one["own"]) + np.array(one["any"])) / 2 for n, one in known.items()}
    gains = {
        f"minus_{n}": vars(bootstrap_interval(both[name] - both[n])) for n in known if n != name
    }
    routes = known[name].get("local_route")
    if routes:
        gap = np.array([[own["own"] - own["other"] for own in one] for one in routes])
        gains["route_gap"] = vars(bootstrap_interval(gap))
    return {**means(known[name]), **gains}


def ceiling(known: Mapping[str, Mapping[str, Any]]) -> float:
    """Of a router that sends the halves to the better of FedAvg and FedAvg+, each as a whole."""
    rows = [means(known[name]) for name in ("fedavg", "fedavg_ft")]
    return round(sum(max(row[half] for row in rows) for half in HALVES) / 2, 4)


def stored() -> dict[str, Any]:
    known: dict[str, Any] = json.loads(OUT.read_text()) if OUT.exists() else {}
    return {"rounds": ROUNDS, "clients": CLIENTS, "search": {}, "fresh": {}, **known}


def keep(results: dict[str, Any]) -> None:
    OUT.write_text(json.dumps(results, indent=1) + "\n")


def search(names: Sequence[str]) -> None:
    for name in names:
        result = run(*SEARCH[name], SEEDS)
        results = stored()
        row = {key: result[key] for key in ("method", "options", "seeds", "seconds")}
        results["search"][name] = {**row, **means(result)}
        keep(results)
        print(name, results["search"][name], flush=True)


def fresh(names: Sequence[str]) -> None:
    for name in names:
        result = run(*CHOSEN[name], FRESH)
        results = stored()
        results["fresh"][name] = result
        known = results["fresh"]
        results["summary"] = {one: summary(one, known) for one in known}
        if {"fedavg", "fedavg_ft"} <= set(known):
            results["ceiling"] = ceiling(known)
        keep(results)
        print(name, result["seconds"], json.dumps(results["summary"][name]), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("search", "fresh"))
    parser.add_argument("--only", help="names of settings, with ; between them")
    args = parser.parse_args()
    torch.set_num_threads(1)
    todo = SEARCH if args.what == "search" else CHOSEN
    names = args.only.split(";") if args.only else list(todo)
    (search if args.what == "search" else fresh)(names)
