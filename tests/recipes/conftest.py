"""A recipe whose runs take a fraction of a second, and a crew that works in this process."""

from pathlib import Path
from typing import Any, ClassVar

import pytest

from fedblocks.recipes.recipe import Cell, Recipe
from fedblocks.recipes.running.reproduction import Reproduction
from fedblocks.recipes.running.results import Results
from fedblocks.recipes.running.task import CellTask
from fedblocks.recipes.running.worker import answers

DIGITS: dict[str, Any] = {
    "rounds": 2,
    "device": "cpu",
    "data": {"name": "digits", "clients": 4, "split": [0.6, 0.2, 0.2]},
    "net": {"name": "mlp", "hidden": [8]},
    "method": {"name": "fedavg", "lr": 0.1, "batch_size": 64},
    "checkpoint": {"every": 1},
}


class PoolHere:
    """Does jobs at once, in this process, and remembers them."""

    jobs: ClassVar[list[dict[str, Any]]] = []

    def __init__(self, size: int) -> None:
        self.size = size

    def work(self, batch: dict[str, Any]) -> list[dict[str, Any]]:
        self.jobs.extend(batch["jobs"])
        return answers(batch)

    def close(self) -> None:
        """Nothing to end."""


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The jobs that were carried out, in this process instead of workers."""
    monkeypatch.setattr(PoolHere, "jobs", [])
    monkeypatch.setattr("fedblocks.recipes.running.reproduce.ProcessPool", PoolHere)
    return PoolHere.jobs


def tiny(*cells: Cell, name: str = "tiny", **more: Any) -> Recipe:
    """A recipe with these cells; default: one cell with two learning rates to choose from."""
    grid = {"method.lr": (0.001, 0.5)}
    arguments = cells or (
        Cell("digits/fedavg", DIGITS, published=90.0, grid=grid, quick={"rounds": 1}),
    )
    return Recipe(name, "Digits", "nobody", "table", arguments, **more)


def asked(
    recipe: Recipe, folder: Path, seeds: int = 2, quick: bool = False, **more: Any
) -> Reproduction:
    """Everything of a recipe, with what the folder already holds."""
    return Reproduction(
        recipe.cells,
        Results.open(folder / "results", recipe, quick),
        seeds,
        folder / "runs",
        **more,
    )


def batch(task: CellTask, seconds: float | None) -> dict[str, Any]:
    """One task as a worker is given it."""
    return {"jobs": [task.job()], "seconds": seconds, "lanes": False}
