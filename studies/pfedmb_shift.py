"""Why are our numbers of pFedMB's table II below the published ones with 15 clients, and not with
50? Local training alone, in both settings, with what the paper leaves open: momentum, weight decay,
augmentation, and clients that hold their two classes alone.

    python studies/pfedmb_shift.py [--budget 120] [--runs FOLDER]

Values are chosen on validation data as in the table, by six tries in full; then three seeds.
Results go to results/pfedmb-shift.json; what is there is not run again.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

from fedblocks.config.options import Table
from fedblocks.recipes.papers.pfedmb import PAPER, PUBLISHED, setting_config
from fedblocks.recipes.recipe import Cell, Recipe, merge_tables
from fedblocks.recipes.running.reproduce import carry_out
from fedblocks.recipes.running.reproduction import Reproduction
from fedblocks.recipes.running.results import Results

ROUNDS = {"c10-2class-15": 40, "c10-2class-50": 20}  # 200 and 100 epochs: Local ends there
RATES = (0.003, 0.01, 0.02, 0.03, 0.05, 0.1)
SLOW = tuple(rate / 10 for rate in RATES)  # momentum of 0.9 makes a step ten times as large
MOMENTUM: Table = {"optimizer": {"name": "sgd", "momentum": 0.9}}
VARIANTS: dict[str, tuple[Table, tuple[float, ...]]] = {
    "plain": ({}, RATES),
    "momentum": ({"method": MOMENTUM}, SLOW),
    "decay": (
        {"method": {"optimizer": {"name": "sgd", "momentum": 0.9, "weight_decay": 5e-3}}},
        SLOW,
    ),
    "augmented": (
        {"method": {"augment": [{"name": "crop", "padding": 4}, {"name": "flip"}]}},
        RATES,
    ),
    "alone": ({"data": {"testbed": {"clients": 5}}}, RATES),  # nobody else has their classes
}


def recipe() -> Recipe:
    cells = []
    for setting, rounds in ROUNDS.items():
        for name, (change, rates) in VARIANTS.items():
            if name == "alone" and setting != "c10-2class-15":
                continue
            config = merge_tables(setting_config(setting, "local"), change)
            config = merge_tables(config, {"rounds": rounds, "evaluation": {"every": rounds}})
            cells.append(
                Cell(
                    f"{setting}/{name}",
                    config,
                    {"name": "fine_tuned_accuracy"},
                    PUBLISHED[setting][0],
                    {"method.lr": rates},
                )
            )
    title = "Local training in pFedMB's table II with what the paper leaves open"
    return Recipe("pfedmb-shift", title, PAPER, "table", tuple(cells))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=float, default=600.0)
    parser.add_argument("--runs", type=Path, default=Path("runs/pfedmb-shift"))
    parser.add_argument("--results", type=Path, default=Path("results"))
    chosen = parser.parse_args()
    asked = recipe()
    reproduction = Reproduction(
        asked.cells,
        Results.open(chosen.results, asked, quick=False),
        seeds=3,
        runs=chosen.runs,
        deadline=time.monotonic() + chosen.budget,
        full_grid=True,
        lanes=torch.cuda.is_available(),
    )
    carry_out(reproduction, print)


if __name__ == "__main__":
    main()
