"""Messages quote what was written, list what may be, and say once what is to be known of data."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import fedblocks as fb
from fedblocks.runs.grids.tune import tune
from fedblocks.runs.progress import RunWarning

ONE_CLASS = '3 clients hold one class only: "0", "2", "3"'


@pytest.fixture
def pair() -> tuple[fb.FedAvg, fb.Federation]:
    """Client 1 alone has two classes."""
    x = np.random.default_rng(0).normal(size=(80, 3)).astype("float32")
    users = np.arange(80) % 4
    data = fb.Federation.from_users(x, (users == 1) & (np.arange(80) % 8 == 1), users)
    return fb.FedAvg(fb.Net.of(lambda: nn.Linear(3, 2)), lr=0.1), data


@pytest.mark.filterwarnings("ignore:.*one class only")
@pytest.mark.parametrize(
    ("rounds", "said"),
    [(1, "rounds = 1: the run has 2"), ("+0", r"rounds = \+0: the run"), (2.5, "rounds = 2.5\n")],
)
def test_rounds_are_quoted_as_they_were_written(
    rounds: Any, said: str, pair: Any, tmp_path: Path
) -> None:
    fb.run(*pair, 2, tmp_path / "run")
    with pytest.raises(fb.UserError, match=said):
        fb.resume(tmp_path / "run", *pair, rounds=rounds)


def test_a_precision_that_there_is_not_is_answered_with_those_that_there_are(
    pair: Any, tmp_path: Path
) -> None:
    with pytest.raises(fb.UserError) as error:
        fb.run(*pair, 1, tmp_path / "run", precision="bf17")
    assert "'float32', 'tf32' or 'bf16'" in error.value.message
    assert "write float32, tf32 (products on a GPU), or bf16" in error.value.fix


def search(pair: Any, folder: Path) -> None:
    pair[1].save(folder / "data.npz")
    text = f'rounds = 1\n[data]\nname = "saved"\noptions = {{ path = "{folder}/data.npz" }}\n'
    text += '[net]\nname = "mlp"\n[method]\nname = "fedavg"\n'
    (folder / "tune.toml").write_text(text)
    tune(str(folder / "tune.toml"), ["method.lr=0.1..1:log"], 2, folder / "tuned")


@pytest.mark.parametrize(
    "train",
    [
        lambda pair, folder: fb.run(*pair, 2, folder / "run"),
        lambda pair, folder: fb.compare(
            [pair[0]], pair[1], rounds=1, seeds=2, out=folder / "compared"
        ),
        search,
    ],
    ids=["run", "compare", "tune"],
)
def test_what_is_to_be_known_of_the_data_is_said_once_by_every_kind_of_run(
    train: Callable[[Any, Path], object], pair: Any, tmp_path: Path
) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        train(pair, tmp_path)
    texts = [str(one.message) for one in seen if issubclass(one.category, RunWarning)]
    assert texts.count(ONE_CLASS) == 1
