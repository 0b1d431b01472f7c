"""ModFL's tables and figures (Liang, Srinivasan and Andresen, 2022), and stand-ins for
the data that few can get.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from fedblocks.recipes.papers.modfl_beds import (
    CAMERAS,
    MOVEMENTS,
    PHONE_AND_WATCH,
    PHOTOGRAPHS,
    READERS,
    Beds,
    Published,
)
from fedblocks.recipes.recipe import Cell, Recipe

PAPER = "Liang, Srinivasan and Andresen (2022): Modular Federated Learning"
IMAGES: Mapping[str, Published] = {
    "cifar-P3": (71.23, 78.29),
    "cifar-P6": (49.75, 62.82),
    "cifar-P9": (57.92, 59.36),
    "stl-P3": (72.09, 78.46),
    "stl-P6": (54.17, 66.35),
    "stl-P9": (62.59, 63.07),
}
ACTIVITIES: Mapping[str, Published] = {
    "hapt-P2": (97.08, 97.08),
    "hapt-P4": (88.75, 87.92),
    "hapt-P5": (91.00, 90.00),
    "rwhar-P2": (97.08, 96.25),
    "rwhar-P4": (86.25, 84.17),
    "rwhar-P5": (85.00, 90.50),
    "wisdm-P2": (94.17, 92.08),
    "wisdm-P4": (75.83, 82.08),
    "wisdm-P5": (83.50, 87.50),
}
FEDX = "FedX is FedPer on one data set alone, and FedAvg where every client holds all labels."
ONE_RUN = (
    "Every published number is one evaluation of one run, pooled over the clients of one data set."
)
ADAM = (
    "Adam starts anew in every round, and models are tried after aggregation; the paper says "
    "neither."
)
WINDOWS = (
    "Windows are 2.56 s long and overlap by half, train and test come from different recordings: "
    "not in the paper."
)
QUICK_IMAGES = (
    "--quick: 9 clients of each data set in the tables, 100 images of each class, 4 rounds "
    "instead of 200, lr 0.003."
)
QUICK_SIGNALS = (
    "--quick: 20 rounds instead of 2000, lr 0.005 instead of 0.001; clients and "
    "windows are the same."
)
NO_STL = ("stl10",)
NO_PHONES = ("realworld", "wisdm")
CAMERA = (
    "A stand-in for STL-10: other images of CIFAR-10, enlarged to 96 x 96 (--quick: 48 x 48), "
    "blurred, with a colour cast and noise. No number of the paper belongs to it."
)
DIGITS = (
    "A stand-in for two image sets: 28 x 28 digits of MNIST and the 8 x 8 digits of UCI, two "
    "generations of readers;"
    " ten classes of 170 images each, 20 clients of each. No number of the paper belongs to it."
)
PHONE = (
    "A stand-in for three phones: HAPT's phone and WISDM-51's watch with the four activities that "
    "both know, 20 clients of each. No number of the paper belongs to it."
)


def table(
    beds: Beds, groups: Sequence[int], published: Mapping[str, Published]
) -> tuple[Cell, ...]:
    """FedX and ModFL on every data set, for some numbers of labels in a group."""
    cells: list[Cell] = []
    for number in beds.sides:
        for per_group in groups:
            known = published.get(f"{beds.full.sides[number].key}-P{per_group}", (None, None))
            cells += beds.pair(number, per_group, f"P{per_group}", "side_accuracy", known)
    return tuple(cells)


def by_clients(beds: Beds, per_group: int, totals: Sequence[int]) -> tuple[Cell, ...]:
    """FedX and ModFL on every data set, for some numbers of clients of all data sets together."""
    return tuple(
        cell
        for number in beds.sides
        for total in totals
        for cell in beds.with_clients(total).pair(number, per_group, f"N{total}", "side_accuracy")
    )


def by_rounds(beds: Beds, groups: Sequence[int]) -> tuple[Cell, ...]:
    """FedX and ModFL on every data set, as curves over rounds."""
    cells = [beds.pair(number, p, f"P{p}", "side_curve") for number in beds.sides for p in groups]
    return tuple(cell for pair in cells for cell in pair)


def table1() -> Recipe:
    """CIFAR-10 and STL-10."""
    cells = table(PHOTOGRAPHS, (3, 6, 9), IMAGES)
    return Recipe(
        "modfl-table1",
        "Table I: nine classes of CIFAR-10 and STL-10, P classes in a group, 72 clients",
        PAPER,
        "table",
        cells,
        notes=(FEDX, ONE_RUN, ADAM, QUICK_IMAGES),
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
        notes=(CAMERA, FEDX, ADAM, QUICK_IMAGES),
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


def table2() -> Recipe:
    """HAPT, RealWorld and WISDM."""
    cells = table(MOVEMENTS, (2, 4, 5), ACTIVITIES)
    title = (
        "Table II: five activities of HAPT, RealWorld (RWHAR) and WISDM v1.1, P in a group, "
        "60 clients"
    )
    return Recipe(
        "modfl-table2",
        title,
        PAPER,
        "table",
        cells,
        notes=(FEDX, ONE_RUN, ADAM, WINDOWS, QUICK_SIGNALS),
    )


def table2_watch() -> Recipe:
    """HAPT and the watch."""
    return replace(
        table2(),
        name="modfl-table2-watch",
        title="As Table II: four activities of HAPT's phone and WISDM-51's watch, P in a group, "
        "40 clients",
        cells=table(PHONE_AND_WATCH, (2, 3, 4), {}),
        stand_in_for="modfl-table2",
        instead_of=NO_PHONES,
        notes=(PHONE, FEDX, ADAM, WINDOWS, QUICK_SIGNALS),
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
    return Recipe(
        "modfl-figure5", title, PAPER, "figure", cells, notes=(text, FEDX, ADAM, QUICK_IMAGES)
    )


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
    return Recipe(
        "modfl-figure6", title, PAPER, "figure", cells, notes=(text, FEDX, ADAM, QUICK_IMAGES)
    )


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


LOST = (
    "Our copy of the paper lacks this figure and its caption. The text varies the number of "
    "clients for activities as Figure 5 does for images (N = 15, 30, 45, 60), so that is what is "
    "repeated here, with four activities in a group."
)


def figure7() -> Recipe:
    """Accuracy against the number of clients, on activities."""
    title = (
        "Figure 7 (as far as known): accuracy against the number of clients N on HAPT, "
        "RealWorld and WISDM v1.1"
    )
    cells = by_clients(MOVEMENTS, 4, (15, 30, 45, 60))
    return Recipe(
        "modfl-figure7",
        title,
        PAPER,
        "figure",
        cells,
        notes=(LOST, FEDX, ADAM, WINDOWS, QUICK_SIGNALS),
    )


def figure7_watch() -> Recipe:
    """The same with a phone and a watch."""
    return replace(
        figure7(),
        name="modfl-figure7-watch",
        title="As Figure 7: accuracy against the number of clients N on HAPT's phone and "
        "WISDM-51's watch",
        cells=by_clients(PHONE_AND_WATCH, 3, (8, 16, 24, 40)),
        stand_in_for="modfl-figure7",
        instead_of=NO_PHONES,
        notes=(
            PHONE,
            LOST,
            "Here three of four activities are in a group, and N = 8, 16, 24, 40.",
            FEDX,
            ADAM,
            WINDOWS,
            QUICK_SIGNALS,
        ),
    )


MODFL: dict[str, Callable[[], Recipe]] = {
    "modfl-table1": table1,
    "modfl-table1-camera": table1_camera,
    "modfl-table1-readers": table1_readers,
    "modfl-table2": table2,
    "modfl-table2-watch": table2_watch,
    "modfl-figure5": figure5,
    "modfl-figure5-camera": figure5_camera,
    "modfl-figure6": figure6,
    "modfl-figure6-camera": figure6_camera,
    "modfl-figure7": figure7,
    "modfl-figure7-watch": figure7_watch,
}
