"""How studies/kin_method.py did beside every method that the suite has results of.

    python studies/kin_gains.py search            who shares what, by validation, the tuning seed
                                                  of the suite and the next two
    fedblocks suite kin --code studies/kin_method.py --tuned --beds digits-groups,hapt,wisdm51
    python studies/kin_gains.py gains FILE        what that wrote

Both add to results/kin.json. Gains are differences to every stored row, paired by seed and client,
with 95 % intervals. A tuned row is compared with default ones, too, because few beds have tuned
ones: such a difference favours the tuned row.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from kin_method import Kin
from step_scale import Options, bed_run

from fedblocks.methods import METHODS
from fedblocks.recipes.suite.entrants import TUNED, TUNING
from fedblocks.recipes.suite.scores import BedRuns, mean_of, read_runs
from fedblocks.recipes.suite.trial import read_files
from fedblocks.reports.compare import differences_of, interval_of

OUT = Path("results/kin.json")
ROWS = ("kin", f"kin{TUNED}")
SEEDS = (TUNING, TUNING + 1, TUNING + 2)
SEARCH: dict[str, tuple[str, Options]] = {
    **{
        f"body {body}, head {head}": ("kin", {"body": body, "head": head})
        for body in ("all", "groups", "cosine")
        for head in ("all", "groups", "cosine", "own")
    },
    **{
        f"body cosine, head cosine, sharpness {sharpness:g}": (
            "kin",
            {"body": "cosine", "head": "cosine", "sharpness": sharpness},
        )
        for sharpness in (10.0, 100.0)
    },
    "body groups, head groups, 10 head epochs": ("kin", {"head_epochs": 10}),
    "ifca": ("ifca", {"start": "updates", "clusters": "auto"}),
}


def gains_of(name: str, runs: BedRuns) -> dict[str, Any]:
    """The differences to all other rows, in points, the best row first."""
    gains = {}
    for other in runs.runs:
        pairs = list(runs.pairs(name, other).values())
        if other in ROWS or not pairs:
            continue
        interval = interval_of(differences_of([(a.accuracies, b.accuracies) for a, b in pairs]))
        mean = mean_of([mean_of(b.accuracies.values()) for _, b in pairs])
        points = {key: round(100 * asdict(interval)[key], 2) for key in ("mean", "low", "high")}
        gains[other] = {"accuracy": round(100 * mean, 2), "seeds": len(pairs), **points}
    return dict(sorted(gains.items(), key=lambda item: -item[1]["accuracy"]))


def summary_of(cells: dict[str, Any]) -> dict[str, Any]:
    files = [*read_files(Path("results")), {"cells": cells}]
    rows = {}
    for key in cells:
        bed, _, name = key.partition("/")
        runs = read_runs(bed, files)
        means = [mean_of(run.accuracies.values()) for run in runs.of(name).values()]
        if means:
            about = {"accuracy": round(100 * mean_of(means), 2), "seeds": len(means)}
            rows[key] = {**about, "chosen": cells[key]["chosen"], "minus": gains_of(name, runs)}
    return rows


def stored() -> dict[str, Any]:
    known: dict[str, Any] = json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else {}
    return {"search": {}, **known}


def keep(results: dict[str, Any]) -> None:
    OUT.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def search(bed: str = "digits-groups") -> None:
    METHODS["kin"] = Kin
    for label, (name, options) in SEARCH.items():
        scores = bed_run(bed, name, options, SEEDS)["validation"]  # [seeds][clients]
        means = [round(100 * float(np.mean(own)), 2) for own in scores]
        results = stored()
        row = {"method": name, "options": options, "seeds": SEEDS, "validation": means}
        results["search"][label] = {**row, "mean": round(float(np.mean(means)), 2)}
        keep(results)
        print(label, means, flush=True)


def gains(file: Path) -> None:
    source = json.loads(file.read_text(encoding="utf-8"))
    about = {key: source[key] for key in ("recipe", "paper", "versions", "devices", "cells")}
    results = {**stored(), **about, "summary": summary_of(source["cells"])}
    keep(results)
    for key, row in results["summary"].items():
        print(key, row["accuracy"], row["chosen"], list(row["minus"].items())[:3])


if __name__ == "__main__":
    torch.set_num_threads(1)
    search() if sys.argv[1] == "search" else gains(Path(sys.argv[2]))
