"""Files of results that are damaged, edited or of something else are refused in plain words."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedblocks.core.errors import UserError
from fedblocks.recipes import RECIPES
from fedblocks.recipes.recipe import Cell
from fedblocks.recipes.running.merging import merge
from fedblocks.recipes.running.results import Results
from fedblocks.recipes.suite.entrants import Entrant, recipe_of
from fedblocks.recipes.suite.merging import merge_suite
from fedblocks.recipes.suite.shared_results import SharedResults

from .conftest import DIGITS, tiny

NUMBER = {"key": "k", "value": 1.5, "seconds": 1.0, "partition": "p"}
TRY = {"key": "t", "validation": 1, "seconds": 1.0, "values": {}, "rounds": 2}
CLIENTS = {"value": 70.0, "test": "0:9/10 3:5/10", "new": "", "bytes": 8}  # 90 % and 50 %
ODD_CELLS = "its cells are not as `fedblocks` writes them"


def entry(number: Any = NUMBER, one: Any = TRY, seed: str = "0") -> dict[str, Any]:
    return {"measure": {}, "chosen": {}, "seeds": {seed: number}, "tuning": [one]}


def write(path: Path, **table: Any) -> Path:
    path.write_text(json.dumps(table))
    return path


@pytest.mark.parametrize(
    ("cell", "says"),
    [
        (entry({**NUMBER, "value": "x"}), 'digits/fedavg, seed 0: "value" = "x"'),
        (entry({**NUMBER, "value": None}), 'digits/fedavg, seed 0: "value" = null'),
        (entry({**NUMBER, "value": True}), 'digits/fedavg, seed 0: "value" = true'),
        (entry({**NUMBER, "test": 3}), 'digits/fedavg, seed 0: "test" = 3'),
        (entry(one={**TRY, "validation": []}), 'digits/fedavg, a try: "validation" = []'),
        (entry(one={**TRY, "key": 1}), 'digits/fedavg, a try: "key" = 1'),
        (entry(seed="x"), ODD_CELLS),
        (entry({"value": 1.0}), ODD_CELLS),
        (entry(7), ODD_CELLS),
        ([], ODD_CELLS),
    ],
)
def test_an_odd_number_is_named_by_whoever_reads_it(
    cell: Any, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny(Cell("digits/fedavg", DIGITS))
    monkeypatch.setitem(RECIPES, "tiny", lambda: recipe)
    cells = {"digits/fedavg": cell}
    path = write(tmp_path / "tiny.json", recipe="tiny", quick=False, cells=cells)
    for reader in (lambda: Results.open(tmp_path, recipe, False), lambda: merge([path], Path("x"))):
        with pytest.raises(UserError) as error:
            reader()
        assert error.value.message == f"{path} is not a file of results: {says}"


def test_numbers_as_they_are_written_are_read(tmp_path: Path) -> None:
    cells = {"digits/fedavg": entry({**NUMBER, "value": float("nan")})}
    write(tmp_path / "tiny.json", cells=cells)
    assert Results.open(tmp_path, tiny(), False).cells.keys() == cells.keys()


@pytest.mark.parametrize(
    "odd",
    [
        {"test": "rubbish"},
        {"test": "0:19/10 3:5/10"},
        {"value": 71.0},
        {"new": "4:3"},
        {"test": ""},
    ],
)
def test_a_suite_whose_counts_are_odd_or_contradict_their_mean_is_refused(
    odd: dict[str, Any], tmp_path: Path
) -> None:
    recipe = recipe_of(Entrant("fedper"))
    path = tmp_path / f"{recipe.name}.json"
    about = {"recipe": recipe.name, "paper": recipe.paper, "quick": False}
    write(path, **about, cells={"hapt/fedper": entry({**NUMBER, **CLIENTS})})
    assert SharedResults.gather(tmp_path, [recipe]).files
    assert len(merge_suite([path], tmp_path / "all")) == 1
    write(path, **about, cells={"hapt/fedper": entry({**NUMBER, **CLIENTS, **odd})})
    says = "hapt/fedper, seed 0: its counts of right answers"
    for folder in (tmp_path / "other", tmp_path):
        with pytest.raises(UserError, match=says):
            merge_suite([path], folder)
    with pytest.raises(UserError, match=says):
        SharedResults.gather(tmp_path, [recipe])
