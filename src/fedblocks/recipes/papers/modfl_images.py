"""Table I and figures 5 and 6 of ModFL, on images of two cameras or readers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fedblocks.recipes.papers.modfl_beds import CAMERAS, PHOTOGRAPHS, READERS, Published
from fedblocks.recipes.papers.modfl_cells import (
    ADAM,
    FEDX,
    ONE_RUN,
    PAPER,
    by_clients,
    by_rounds,
    table,
)
from fedblocks.recipes.recipe import Recipe

ACCURACIES: Mapping[str, Published] = {
    "cifar-P3": (71.23, 78.29),
    "cifar-P6": (49.75, 62.82),
    "cifar-P9": (57.92, 59.36),
    "stl-P3": (72.09, 78.46),
    "stl-P6": (54.17, 66.35),
    "stl-P9": (62.59, 63.07),
}
QUICK = (
    "--quick: 9 clients of each data set in the tables, 100 images of each class, 4 rounds "
    "instead of 200, lr 0.003."
)
NO_STL = ("stl10",)
CAMERA = (
    "A stand-in for STL-10: other images of CIFAR-10, enlarged to 96 x 96 (--quick: 48 x 48), "
    "blurred, with a colour cast and noise. No number of the paper belongs to it."
)
DIGITS = (
    "A stand-in for two image sets: 28 x 28 digits of MNIST and the 8 x 8 digits of UCI, two "
    "generations of readers; ten classes of 170 images each, 20 clients of each. No number of the "
    "paper belongs to it."
)


def table1() -> Recipe:
    """CIFAR-10 and STL-10."""
    cells = table(PHOTOGRAPHS, (3, 6, 9), ACCURACIES)
    return Recipe(
        "modfl-table1",
        "Table I: nine classes of CIFAR-10 and STL-10, P classes in a group, 72 clients",
        PAPER,
        "table",
        cells,
        notes=(FEDX, ONE_RUN, ADAM, QUICK),
    )


def table1_camera() -> Recipe:
    """CIFAR-10 and another camera."""
    cells = table(CAMERAS, (3, 6, 9), {})
    return replace(
        table1(),
        name="modfl-table1-camera",
        title="As Table I: nine classes of CIFAR-10 from two cameras, P classes in a group, 72 "
        "clients",
        cells=cells,
        stand_in_for="modfl-table1",
        instead_of=NO_STL,
        notes=(CAMERA, FEDX, ADAM, QUICK),
    )


def table1_readers() -> Recipe:
    """MNIST and the 8 x 8 digits."""
    return replace(
        table1(),
        name="modfl-table1-readers",
        title="As Table I: handwritten digits from two generations of readers, P digits in a "
        "group, 40 clients",
        cells=table(READERS, (3, 6, 10), {}),
        stand_in_for="modfl-table1",
        instead_of=NO_STL,
        notes=(
            DIGITS,
            FEDX,
            ADAM,
            "--quick: 10 clients of each, 60 images of each digit, 12 rounds instead of 200, "
            "batch 4, lr 0.003.",
        ),
    )


def figure5() -> Recipe:
    """Accuracy against the number of clients."""
    title = (
        "Figure 5: accuracy against the number of clients N on CIFAR-10 and STL-10, six "
        "classes in a group"
    )
    text = (
        "The paper's text: FedPer falls with N, ModFL only a little. Our copy has no numbers "
        "of the figure."
    )
    cells = by_clients(PHOTOGRAPHS, 6, (18, 36, 54, 72))
    return Recipe("modfl-figure5", title, PAPER, "figure", cells, notes=(text, FEDX, ADAM, QUICK))


def figure5_camera() -> Recipe:
    """The same with another camera."""
    return replace(
        figure5(),
        name="modfl-figure5-camera",
        title="As Figure 5: accuracy against the number of clients N on CIFAR-10 from two "
        "cameras, six in a group",
        cells=by_clients(CAMERAS, 6, (18, 36, 54, 72)),
        stand_in_for="modfl-figure5",
        instead_of=NO_STL,
        notes=(CAMERA, *figure5().notes),
    )


def figure6() -> Recipe:
    """Accuracy against rounds."""
    title = (
        "Figure 6: accuracy against rounds on CIFAR-10 and STL-10, three and six classes in "
        "a group, 72 clients"
    )
    text = (
        "The paper's text: FedPer stagnates after about 100 (P=3) and 50 rounds (P=6), ModFL "
        "still improves at 200."
    )
    cells = by_rounds(PHOTOGRAPHS.evaluated_every(5, 1), (3, 6))
    return Recipe("modfl-figure6", title, PAPER, "figure", cells, notes=(text, FEDX, ADAM, QUICK))


def figure6_camera() -> Recipe:
    """The same with another camera."""
    return replace(
        figure6(),
        name="modfl-figure6-camera",
        title="As Figure 6: accuracy against rounds on CIFAR-10 from two cameras, three and six "
        "classes in a group",
        cells=by_rounds(CAMERAS.evaluated_every(5, 1), (3, 6)),
        stand_in_for="modfl-figure6",
        instead_of=NO_STL,
        notes=(CAMERA, *figure6().notes),
    )
