"""The notebooks run from the first cell to the last, and are notebooks."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fedblocks.methods import METHODS

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
NOTEBOOKS = sorted(path.stem for path in FOLDER.glob("*.py"))


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Temporary folders of its own, and the methods and threads of before afterwards."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    known, threads = dict(METHODS), torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    METHODS.clear()
    METHODS.update(known)


def test_there_are_two_notebooks() -> None:
    assert NOTEBOOKS == ["digits_in_five_minutes", "your_own_method"]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(FOLDER / f"{name}.py"))
    printed = capsys.readouterr().out
    if name == "your_own_method":
        assert printed.count("  holds ") == 22 and "a round equals its arithmetic" in printed
    else:
        # one model for all is the worst
        assert re.findall(r"^(\w+) +mean", printed, re.MULTILINE)[-1] == "fedavg"


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_jupytext_reads_a_notebook_of_text_and_code(name: str) -> None:
    jupytext = pytest.importorskip(
        "jupytext", reason="notebooks need jupytext: pip install 'fedblocks[docs]'"
    )
    cells = jupytext.read(FOLDER / f"{name}.py", fmt="py:percent").cells
    kinds = [cell["cell_type"] for cell in cells]
    assert (
        kinds[0] == "markdown" and kinds.count("code") >= 4 and set(kinds) == {"markdown", "code"}
    )
    assert cells[0]["source"].startswith("# ")
