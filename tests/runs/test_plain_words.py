"""What goes wrong in somebody's first hours is named for what it is, with a fix that helps."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import fedblocks as fb

ROWS = 120
X = np.random.default_rng(0).normal(size=(ROWS, 4)).astype("float32")
USERS = np.arange(ROWS) % 4
CLASSES = (X[:, 0] > 0).astype(int) + (X[:, 1] > 0)


def mlp(outputs: int, *last: nn.Module) -> fb.Net:
    return fb.Net.of(
        lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, outputs), *last)
    )


class Two(nn.Module):
    """A module of two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self.layer(a + b)


class Sum(nn.Module):
    """The sum of a dictionary of inputs."""

    def forward(self, fields: dict[str, torch.Tensor]) -> torch.Tensor:
        return fields["a"] + fields["b"]


def of_users(x: object, y: object, **options: object) -> fb.Federation:
    return fb.Federation.from_users(x, y, USERS, **options)  # type: ignore[arg-type]


def run(net: fb.Net, data: fb.Federation, kind: type = fb.FedAvg) -> None:
    fb.run(kind(net, lr=0.1), data, rounds=1)


def two_for_flow(kind: type) -> None:
    data = of_users({"a": X, "b": X}, CLASSES)
    net = fb.Net.of(lambda: nn.Sequential(Sum(), nn.Linear(4, 3)), inputs=data.fields)
    run(net, data, kind)


def one_field_for_two() -> None:
    data = of_users({"a": X}, CLASSES)
    run(fb.Net.of(Two, inputs=data.fields), data)


def starts_with_nan() -> nn.Module:
    layer = nn.Linear(4, 3)
    nn.init.constant_(layer.weight, float("nan"))
    return nn.Sequential(layer)


class OwnStart(nn.Linear):
    """A user's module, which is checked against plain PyTorch, that starts with NaN."""

    def __init__(self) -> None:
        super().__init__(4, 3)
        nn.init.constant_(self.bias, float("nan"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * 2


def from_words_in_parquet() -> None:
    pd.DataFrame({"a": X[:, 0], "user": USERS, "label": ["hot"] * ROWS}).to_parquet("w.parquet")
    fb.Federation.from_parquet("w.parquet", task="regression")


COLUMN = np.zeros(ROWS)
ONE_HOT = np.eye(3, dtype=int)[CLASSES]
WRONG: dict[str, tuple[Callable[[], object], str, str]] = {
    "flow of two inputs": (
        lambda: two_for_flow(fb.Flow),
        r"several inputs \(a, b\)",
        "one array",
    ),
    "flow v2 of two inputs": (
        lambda: two_for_flow(fb.FlowV2),
        r"several inputs \(a, b\)",
        "one array",
    ),
    "a flat regression net": (
        lambda: run(mlp(1, nn.Flatten(0)), of_users(X, COLUMN, task="regression")),
        r"1 number needs \[2, 1\]",
        r"return \[batch, 1\]",
    ),
    "a column of classes": (
        lambda: run(mlp(3), of_users(X, CLASSES[:, None])),
        r"need \[2, 1, 3\]",
        r"use y\[:, 0\]",
    ),
    "one-hot labels": (
        lambda: run(mlp(3), of_users(X, ONE_HOT)),
        "2 classes need",
        r"use y\.argmax\(1\) .*multi-label",
    ),
    "one field for two": (
        one_field_for_two,
        r"takes \(a, b\), and the inputs are a$",
        "a field b",
    ),
    "words in a regression": (
        lambda: of_users(X, np.array(["hot", "cold"])[USERS % 2], task="regression"),
        'the labels y hold <U4 such as "hot"',
        "for classes leave",
    ),
    "words in a regression on parquet": (
        from_words_in_parquet,
        'the label "label" of w.parquet holds words',
        "column of numbers",
    ),
    "words in a field": (
        lambda: of_users({"a": X, "b": np.array(["q"] * ROWS)}, CLASSES),
        "^b: arrays of type <U1",
        "give numbers",
    ),
    "a start with NaN": (
        lambda: run(fb.Net.of(starts_with_nan), of_users(X, CLASSES)),
        'starts with NaN in "0.weight"',
        "how the module draws it",
    ),
    "a start of one's own with NaN": (
        lambda: run(fb.Net.of(OwnStart), of_users(X, CLASSES)),
        'starts with NaN in "bias"',
        "how the module draws it",
    ),
    "a list of arrays": (
        lambda: of_users([X, X], CLASSES),
        "x is a list of 2 arrays of 120 rows",
        "dictionary.* or a tuple",
    ),
    "a list of arrays for a partition": (
        lambda: fb.Federation.from_arrays([X, X], CLASSES, [range(60), range(60, 120)]),
        "x is a list of 2 arrays of 120 rows",
        "dictionary.* or a tuple",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_named(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    call, message, fix = WRONG[what]
    with pytest.raises(fb.UserError) as caught:
        call()
    assert re.search(message, caught.value.message), caught.value.message
    assert re.search(fix, caught.value.fix), caught.value.fix


def test_a_text_is_the_name_of_one_column(tmp_path: Path) -> None:
    table = pd.DataFrame({"alter": X[:, 0], "rest": X[:, 1], "user": USERS, "label": CLASSES})
    table.to_csv(tmp_path / "t.csv", index=False)
    data = fb.Federation.from_csv(tmp_path / "t.csv", columns="alter")
    assert data.about["columns"] == ["alter"] and data.x.shape == (ROWS, 1)
