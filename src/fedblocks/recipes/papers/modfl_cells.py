"""What the tables and figures of ModFL have in common: FedX beside ModFL, and notes on both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedblocks.recipes.papers.modfl_beds import Beds, Published
from fedblocks.recipes.recipe import Cell

PAPER = "Liang, Srinivasan and Andresen (2022): Modular Federated Learning"
FEDX = "FedX is FedPer on one data set alone, and FedAvg where every client holds all labels."
ONE_RUN = (
    "Every published number is one evaluation of one run, pooled over the clients of one data set."
)
ADAM = (
    "Adam starts anew in every round, and models are tried after aggregation; the paper says "
    "neither."
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
