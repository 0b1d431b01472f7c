"""The communication figure of FedMN: accuracy against parameters sent."""

from __future__ import annotations

from fedblocks.config.options import Table
from fedblocks.nets.modular import figure_pools
from fedblocks.recipes.papers.fedmn import EMNIST, FEDMN_RATES, PAPER, PRINTED, SEED, SETTINGS
from fedblocks.recipes.recipe import Cell, Recipe

NOTES = (
    "The paper prints no numbers and does not name the data set; its claim: FedMN sends fewer "
    "parameters than FedAvg and is more accurate after 20 rounds, both being perceptrons of 256 "
    "units with 8, 9 or 10 blocks. Curves: accuracy against the parameters sent until then, both "
    "ways, with and without FedMN's router.",
    "Chosen here: CIFAR-10 and EMNIST as table II divides them, batches of 128, no momentum, 6 "
    "learning rates for both methods.",
    "--quick: a small share of the images, 4 of 10 clients in each of 6 rounds, one pool of each "
    "size, a fixed learning rate.",
)
OWN_MODULES = {name: value for name, value in PRINTED.items() if name != "widths"}


def figure2() -> Recipe:
    """Accuracy against parameters sent."""
    cells = figure_cells("cifar10") + figure_cells("emnist")
    title = "Accuracy against transmitted parameters"
    return Recipe("fedmn-figure2", title, PAPER, "figure", cells, notes=NOTES)


def figure2_emnist116k() -> Recipe:
    """The same on EMNIST's official test part."""
    title = "Accuracy against transmitted parameters, on 116,323 images of EMNIST"
    return Recipe(
        "fedmn-figure2-emnist116k",
        title,
        PAPER,
        "figure",
        figure_cells("emnist116k"),
        stand_in_for="fedmn-figure2",
        instead_of=("emnist",),
        notes=(EMNIST, *NOTES),
    )


def figure_cells(setting: str) -> tuple[Cell, ...]:
    """FedAvg with 8 to 10 layers, and FedMN with every pool of as many blocks."""
    cells = []
    for blocks in (8, 9, 10):
        net: Table = {"name": "figure_mlp", "layers": blocks}
        cells.append(figure_cell(setting, f"fedavg-{blocks}", net, {"name": "fedavg"}))
    for blocks in (8, 9, 10):
        for number, pool in enumerate(figure_pools(blocks)):
            net = {"name": "modular_mlp", "layers": 3}
            method: Table = {**OWN_MODULES, "name": "fedmn", "modules": list(pool)}
            point = f"fedmn-{'x'.join(map(str, pool))}"
            cells.append(figure_cell(setting, point, net, method, in_quick=number == 1))
    return tuple(cells)


def figure_cell(setting: str, point: str, net: Table, method: Table, in_quick: bool = True) -> Cell:
    """Twenty rounds, evaluated after each."""
    config: Table = {
        "rounds": 20,
        "data": {**SETTINGS[setting]["data"], "seed": SEED},
        "net": net,
        "method": {**method, "lr": 0.05, "batch_size": 128},
        "evaluation": {"every": 1, "parts": ["test"]},
    }
    quick: Table = {
        "rounds": 6,
        "data": SETTINGS[setting]["quick"],
        "cohort": {"size": 0.4},
        "checkpoint": {"every": 6},
        "method": {"batch_size": 32, "lr": 0.1},
    }
    return Cell(
        f"{setting}/{point}",
        config,
        {"name": "accuracy_curve"},
        grid={"method.lr": FEDMN_RATES},
        tries=6,
        tuning={
            "data": {"testbed": {"validation": 0.25}},
            "evaluation": {"every": 20, "parts": ["validation"]},
        },
        choose_by={"name": "mean_accuracy"},
        quick=quick,
        in_quick=in_quick,
        same_data=True,
        official=setting == "emnist",
    )
