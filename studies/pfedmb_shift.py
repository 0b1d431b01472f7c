"""Why are our numbers of pFedMB's table II below the published ones with 15 clients, and not with
50? Local training alone, in both settings, with what the paper leaves open: momentum, weight decay,
augmentation, and clients that hold their two classes alone.

    python studies/pfedmb_shift.py [--budget 120] [--runs FOLDER]

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

FEW, MANY = "c10-2class-15", "c10-2class-50"
ROUNDS = {FEW: 40, MANY: 20}  # 200 and 100 epochs: Local does not improve after that
RATES = (0.003, 0.01, 0.02, 0.03, 0.05, 0.1)
SLOW = tuple(rate / 10 for rate in RATES)  # momentum of 0.9 makes a step ten times as large
AUGMENTED: Table = {
    "method": {"augment": [{"name": "crop", "padding": 4}, {"name": "flip"}]},
}
CELLS: dict[str, tuple[Table, tuple[float, ...]]] = {
    f"{FEW}/plain": ({}, RATES),
    f"{FEW}/momentum": ({"method": {"optimizer": {"name": "sgd", "momentum": 0.9}}}, SLOW),
    f"{FEW}/decay": (
        {"method": {"optimizer": {"name": "sgd", "momentum": 0.9, "weight_decay": 5e-3}}},
        SLOW,
    ),
    f"{FEW}/augmented": (AUGMENTED, RATES),
    f"{FEW}/alone": ({"data": {"testbed": {"clients": 5}}}, RATES),
    f"{MANY}/augmented": (AUGMENTED, (0.02, 0.05, 0.1)),
}
NOTES = (
    "A study of our own (`studies/pfedmb_shift.py`): Local training alone, with what the paper "
    "leaves open. Values are chosen on validation data, all tries in full: 200 epochs with 15 "
    "clients, 100 with 50; then three seeds.",
    "plain: as in the table. momentum: 0.9. decay: the same and a weight decay of 0.005. "
    "augmented: crops of images padded by 4 pixels, and flips. alone: five clients, so that "
    "nobody else holds examples of their two classes (8,000 images each instead of 2,666).",
)


def recipe() -> Recipe:
    title = "What moves Local training in pFedMB's table II"
    cells = tuple(_cell(key, change, rates) for key, (change, rates) in CELLS.items())
    return Recipe("pfedmb-shift", title, PAPER, "table", cells, notes=NOTES)


def _cell(key: str, change: Table, rates: tuple[float, ...]) -> Cell:
    setting = key.partition("/")[0]
    rounds = {"rounds": ROUNDS[setting], "evaluation": {"every": ROUNDS[setting]}}
    config = merge_tables(merge_tables(setting_config(setting, "local"), change), rounds)
    measure: Table = {"name": "fine_tuned_accuracy"}
    return Cell(key, config, measure, PUBLISHED[setting][0], {"method.lr": rates})


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
