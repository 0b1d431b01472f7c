"""Which defaults of Flow suit clients with few examples? Three beds of the suite, by validation.

    FEDBLOCKS_DATA=... python studies/flow_defaults.py    adds to results/flow-defaults.json

Everything but the options named below is as in the suite, also the learning rate. Seeds 20 to 22,
which the suite does not report; validation data decide, test accuracies stand beside them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from step_scale import CHOSEN_BEDS, SEEDS, Options, bed_run

from fedblocks.reports.intervals import bootstrap_interval

OUT = Path("results/flow-defaults.json")
POSTER: Options = {
    "global_update_path": "personalised",
    "local_epochs": 1,
    "router_epochs": 1,
    "router_scope": "federated",
    "split_adaptation": False,
}
ALONE: Options = {**POSTER, "global_update_path": "global_only"}
LONGER: Options = {**ALONE, "local_epochs": 10, "router_epochs": 3}
OWN: Options = {**LONGER, "router_scope": "local_reinit"}
PAPER: Options = {"local_epochs": 3, "router_epochs": 3, "split_data": True, "eval_routing": "hard"}
VARIANTS: dict[str, tuple[str, Options]] = {
    "local": ("local", {}),
    "fedavg": ("fedavg", {}),
    "fedavg_ft, 13 epochs": ("fedavg_ft", {"tune_epochs": 13}),
    "flow, poster": ("flow", POSTER),
    "flow, shared net alone": ("flow", ALONE),
    "flow, 10 local epochs": ("flow", LONGER),
    "flow, own router": ("flow", OWN),
    "flow, halves": ("flow", {**OWN, "split_adaptation": True}),
    "flow_v2, paper": ("flow_v2", PAPER),
    "flow_v2, soft": ("flow_v2", {**PAPER, "eval_routing": "soft"}),
    "flow_v2, soft, 10 local epochs": (
        "flow_v2",
        {**PAPER, "eval_routing": "soft", "local_epochs": 10},
    ),
    "flow_v2, soft, 10 local epochs, all data": (
        "flow_v2",
        {**PAPER, "eval_routing": "soft", "local_epochs": 10, "split_data": False},
    ),
}


def stored() -> dict[str, Any]:
    known: dict[str, Any] = json.loads(OUT.read_text()) if OUT.exists() else {}
    return {"seeds": SEEDS, "runs": {}, **known}


def summary(runs: dict[str, Any]) -> dict[str, Any]:
    """Means, and on validation data the difference to the first variant of the same method."""
    rows: dict[str, Any] = {}
    for name, own in runs.items():
        means = {part: round(float(np.mean(own[part])), 4) for part in ("validation", "test")}
        first = next(one for one in VARIANTS if VARIANTS[one][0] == VARIANTS[name][0])
        if first != name and first in runs:
            gain = np.array(own["validation"]) - np.array(runs[first]["validation"])
            means[f"minus {first}"] = vars(bootstrap_interval(gain))
        rows[name] = means
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--beds", default=",".join(CHOSEN_BEDS))
    parser.add_argument("--only", default=";".join(VARIANTS), help="with ; between them")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for bed in args.beds.split(","):
        for name in args.only.split(";"):
            result = bed_run(bed, *VARIANTS[name])
            results = stored()
            runs = results["runs"].setdefault(bed, {})
            runs[name] = result
            results.setdefault("summary", {})[bed] = summary(runs)
            OUT.write_text(json.dumps(results, indent=1) + "\n")
            print(bed, name, results["summary"][bed][name], flush=True)
