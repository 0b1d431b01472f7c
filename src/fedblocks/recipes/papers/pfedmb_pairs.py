"""Table I and figures 3 and 4 of pFedMB: ten clients in five pairs (V-B of the paper)."""

from __future__ import annotations

from fedblocks.config.options import Table
from fedblocks.recipes.papers.pfedmb import (
    ALPHA_RATES,
    COMMON,
    MANY_RATES,
    PAPER,
    QUICK_NET,
    RATES,
    TWO_STARTS,
)
from fedblocks.recipes.recipe import Cell, Recipe

BRANCHED: Table = {
    "name": "pfedmb",
    "branches": 5,
    "alpha_scope": "model",
    "finetune": "alpha+W",
    "lr_scale": "printed",
}
LITERAL: Table = {**BRANCHED, "start": "independent"}
AROUND: Table = {**BRANCHED, "start": COMMON["start"]}
PAIRS: dict[str, Table] = {
    "fedavg": {"name": "fedavg_ft", "tune_epochs": 5},
    "pfedmb-plain": {**LITERAL, "averaging": "plain"},
    "pfedmb": {**LITERAL, "averaging": "alpha"},
    "pfedmb-plain-common": {**AROUND, "averaging": "plain"},
    "pfedmb-common": {**AROUND, "averaging": "alpha"},
}
PAIRS_NOTES = (
    TWO_STARTS,
    "Clients 2p and 2p+1 hold halves of the classes 2p and 2p+1; 5 branches, one alpha for the "
    "whole net, 5 epochs, batches of 64, evaluated after fine-tuning. Not in the paper, chosen "
    "here: 200 rounds, no momentum, softmax, 12 runs to choose learning rates on validation data.",
    "--quick: a perceptron of 32 units in place of LeNet, a twentieth of the images, 2 local "
    "epochs, 15 rounds, 2 learning rates to choose from.",
)
UNSEEN = "Our copy of the paper lacks the figure itself; this is the study that its text describes."


def table1() -> Recipe:
    """Ten clients in five pairs: does averaging by alpha help?"""
    cells = tuple(pairs_cell(point, {"name": "mean_accuracy"}) for point in PAIRS)
    known = (
        "Our copy of the paper lacks the numbers; known: FedAvg < pFedMB, and averaging by alpha "
        "> plain averaging."
    )
    return Recipe(
        "pfedmb-table1",
        "Ten clients in five pairs",
        PAPER,
        "table",
        cells,
        quick_seeds=3,
        notes=(known, *PAIRS_NOTES),
    )


def figure3() -> Recipe:
    """Who uses which branch, round by round."""
    cells = tuple(
        pairs_cell(point, {"name": "branch_weights"}) for point in PAIRS if point != "fedavg"
    )
    expected = (
        "Expected from the text: clients of a pair come to rely on one branch of their own, later "
        "and with collisions if branches are averaged plainly. The number is the share of pairs "
        "with a branch of their own after the last round."
    )
    return Recipe(
        "pfedmb-figure3",
        "Branch weights of the pairs",
        PAPER,
        "figure",
        cells,
        quick_seeds=3,
        notes=(expected, UNSEEN, *PAIRS_NOTES),
    )


def figure4() -> Recipe:
    """Accuracy by round with and without averaging by alpha."""
    cells = tuple(pairs_cell(point, {"name": "accuracy_curve"}) for point in PAIRS)
    return Recipe(
        "pfedmb-figure4",
        "Learning curves of the pairs",
        PAPER,
        "figure",
        cells,
        quick_seeds=3,
        notes=(UNSEEN, *PAIRS_NOTES),
    )


def pairs_cell(point: str, measure: Table) -> Cell:
    """One method in the study of pairs; tables and figures share the runs."""
    method = {**PAIRS[point], "epochs": 5, "batch_size": 64}
    config: Table = {
        "rounds": 200,
        "data": {"name": "cifar10", "testbed": {"name": "pfedmb_pairs"}},
        "net": {"name": "lenet"},
        "method": method,
        "evaluation": {"every": 5, "parts": ["validation", "test"]},
    }
    branched = point != "fedavg"
    branch_grid = {"method.lr": RATES, "method.alpha_lr": ALPHA_RATES}
    own = {"alpha_lr": 1.0} if branched else {"tune_epochs": 2}
    quick: Table = {
        "rounds": 15,
        "data": {"testbed": {"fraction": 0.05}},
        "net": QUICK_NET,
        "method": {"epochs": 2, "batch_size": 32, **own},
        "evaluation": {"every": 3},
        "checkpoint": {"every": 15},
    }
    return Cell(
        f"pairs/{point}",
        config,
        measure,
        grid=branch_grid if branched else {"method.lr": MANY_RATES},
        choose_by={"name": "mean_accuracy"},
        quick=quick,
        quick_grid={"method.lr": (0.02, 0.06)},
    )
