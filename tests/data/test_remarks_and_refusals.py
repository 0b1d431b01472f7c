"""What is said of data, to the word: what is wrong with them, and what is only worth knowing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedblocks.core.errors import DataError, UserError
from fedblocks.core.task import Task
from fedblocks.data.checks import holders, warnings
from fedblocks.data.federation import Federation, Rows
from fedblocks.data.joining import Parts, join, join_parts
from fedblocks.data.overview import describe, preview
from fedblocks.data.sets.idx import read_idx
from fedblocks.data.target_columns import target_columns
from fedblocks.data.targets import (
    describe_targets,
    gaps_in_labels,
    has_known_targets,
    is_one_hot,
    refuse_partly_known,
    remarks_on_targets,
    spread_of_targets,
)

REGRESSION, LABELS = Task("regression"), Task("multi-label")
NAN = float("nan")


def federation(**changes: Any) -> Federation:
    """Three clients; the last has one row to train on and none to test on."""
    whole = {
        "x": torch.arange(16.0).view(8, 2), "y": torch.tensor([0, 1, 2, 0, 1, 1, 2, 2]),
        "train": Rows.of([[0, 1], [2, 3, 4], [5]]), "validation": Rows.of([[], [6], []]),
        "test": Rows.of([[7], [6], []]), "classes": 3, "names": ("a", "b", "c"),
    }  # fmt: skip
    return Federation(**{**whole, **changes})


def numbers(y: list[list[float]], task: Task = REGRESSION) -> Federation:
    x = torch.zeros(len(y), 2)
    rows = Rows.of([[i] for i in range(len(y))])
    none = Rows.none(len(y))
    own = torch.tensor(y)
    names = tuple("abcd"[: len(y)])
    parts = {"train": rows, "validation": none, "test": none}
    return Federation(x=x, y=own, classes=own.shape[1], task=task, names=names, **parts)


REFUSED: dict[str, Any] = {
    'two clients are called "a"': lambda: federation(names=("a", "b", "a")),
    'train rows out of range at "b"': lambda: federation(train=Rows.of([[0], [8], [5]])),
    'test rows out of range at "a"': lambda: federation(test=Rows.of([[-1], [6], []])),
    "row 3, column 1 is nan": lambda: federation(x=with_odd((3, 1), NAN)),
    "row 3, column 1 is inf, and 1 more value": lambda: federation(
        x=with_odd((3, 1), float("inf"), (4, 0))
    ),
    'labels outside 0..2: row 4 has label 3 (clients: "b")': lambda: federation(y=with_label(4, 3)),
    'row 0 has label -1 (clients: "a")': lambda: federation(y=with_label(0, -1)),
    'no training rows at "b", "c"': lambda: federation(train=Rows.of([[0], [], []])),
    'targets are infinite: row 1 has inf (clients: "b")': lambda: numbers([[1.0], [float("inf")]]),
    'labels are neither 0 nor 1: row 0 has 2 (clients: "a")': lambda: numbers([[2.0]], LABELS),
}


def with_odd(place: tuple[int, int], value: float, *others: tuple[int, int]) -> torch.Tensor:
    x = torch.arange(16.0).view(8, 2)
    for one in (place, *others):
        x[one] = value
    return x


def with_label(row: int, label: int) -> torch.Tensor:
    y = torch.tensor([0, 1, 2, 0, 1, 1, 2, 2])
    y[row] = label
    return y


@pytest.mark.parametrize("message", REFUSED)
def test_data_that_cannot_be_trained_on_are_refused_where_they_are(message: str) -> None:
    with pytest.raises(DataError) as refused:
        REFUSED[message]().check()
    assert message in refused.value.message


def test_rows_that_nobody_holds_may_be_anything() -> None:
    own = federation(test=Rows.of([[], [6], []]))  # nobody has row 7
    replace(own, x=with_odd((7, 0), NAN), y=with_label(7, 99)).check()
    mask = np.zeros(8, dtype=bool)
    mask[[6, 5]] = True
    assert holders(own, mask) == '"b", "c"'


SHAPES: dict[str, Any] = {
    "there are 3 clients, but names has 2 entries": lambda: federation(names=("a", "b")),
    "there are 3 clients, but test has 2 entries": lambda: federation(test=Rows.of([[], []])),
    "there are 3 clients, but tag city has 1 entries": lambda: federation(
        tags={"city": np.array([1])}
    ),
    "classes is 0": lambda: federation(classes=0),
    "labels are torch.float32 of shape [8]": lambda: federation(y=torch.zeros(8)),
    "1 targets an example, and 2 outputs": lambda: replace(numbers([[1.0]]), classes=2),
    "labels are torch.int64 of shape [1, 1]": lambda: replace(
        numbers([[1.0]]), y=torch.zeros(1, 1, dtype=torch.int64)
    ),
}


@pytest.mark.parametrize("message", SHAPES)
def test_parts_of_other_sizes_are_refused_at_once(message: str) -> None:
    with pytest.raises(DataError) as refused:
        SHAPES[message]()
    assert refused.value.message == message


def test_remarks_name_the_clients_and_count_them() -> None:
    assert warnings(federation(), few=2) == [
        '1 client holds one class only: "c"',
        '1 client has fewer than 2 training rows: "c"',
        '1 client has no test rows: "c"',
    ]
    many = warnings(federation(test=Rows.of([[0], [1], []])), few=3)
    assert many[1:] == [
        '2 clients have fewer than 3 training rows: "a", "c"',
        '1 client has no test rows: "c"',
        "2 rows are both trained and tested on",
    ]
    none = federation(train=Rows.of([[0, 1], [], [2, 3]]), test=Rows.of([[], [], []]))
    assert warnings(none, few=2) == [
        '1 client has no training rows: "b"',
        "no client has test rows: split=(0.6, 0.2, 0.2) gives everybody some",
    ]
    gaps = replace(federation(), classes=5)
    assert warnings(gaps, few=1)[-1] == (
        "no row has label 3, 4 (labels present: 0, 1, 2): a net has an output for each of 5 classes"
    )


def test_targets_are_described_and_gaps_in_them_named() -> None:
    assert [describe_targets(one) for one in (federation(), replace(federation(), classes=1))] == [
        "3 classes", "1 class",
    ]  # fmt: skip
    assert describe_targets(numbers([[1.0, 2.0]])) == "2 numbers"
    assert describe_targets(numbers([[1.0]], LABELS)) == "1 label"
    assert gaps_in_labels(federation()) == "" == gaps_in_labels(numbers([[1.0]]))
    wide = replace(federation(), classes=9)
    assert gaps_in_labels(wide) == "no row has label 3, 4, 5, 6, 7, ... (labels present: 0, 1, 2)"
    assert "7 (labels" in gaps_in_labels(replace(federation(), classes=8))


def test_labels_as_rows_of_a_single_one_are_known() -> None:
    rows = lambda y: replace(federation(), y=torch.tensor(y), x=torch.zeros(len(y), 2))
    assert is_one_hot(rows([[0, 1], [1, 0]]))
    assert not is_one_hot(rows([[1, 1], [1, 0]])) and not is_one_hot(rows([[0, 2], [1, 0]]))
    assert not is_one_hot(rows([[1], [1]])) and not is_one_hot(federation())


def test_targets_that_are_not_known_are_counted() -> None:
    assert remarks_on_targets(federation()) == []
    one = federation(y=with_label(3, -100))
    assert remarks_on_targets(one) == ["1 target is missing (-100) and is not scored"]
    two = numbers([[NAN, NAN], [0.0, 1.0]])
    assert remarks_on_targets(two) == ["2 targets are missing (NaN) and are not scored"]
    assert has_known_targets(two, "train") and not has_known_targets(two, "test")
    assert not has_known_targets(numbers([[NAN]]), "train")


def test_a_loss_of_whole_examples_is_refused_where_targets_are_partly_known() -> None:
    whole = Task("regression", loss=lambda outputs, targets: (outputs - targets).abs().mean(1))
    refuse_partly_known(numbers([[NAN, NAN], [0.0, 1.0]], whole))
    refuse_partly_known(numbers([[NAN, 1.0]]))  # a loss for each target
    with pytest.raises(UserError, match="and 1 example has targets of which only a part is known"):
        refuse_partly_known(numbers([[NAN, 1.0], [0.0, 1.0]], whole))


def test_a_table_of_clients_has_means_and_spreads_of_their_targets() -> None:
    y = numbers([[1.0, 4.0], [NAN, NAN], [NAN, 2.0]])
    assert spread_of_targets(y, y.train) == {
        "target_mean": [2.5, None, 2.0],  # (1 + 4) / 2
        "target_std": [1.5, None, 0.0],
    }
    lines = preview(y, 1)
    assert lines == [
        {"client": "a", "train": 1, "validation": 0, "test": 0,
         "target_mean": 2.5, "target_std": 1.5},
    ]  # fmt: skip
    assert "classes_held_mean" not in describe(y)
    table = preview(federation(), None)
    assert [(one["classes"], one["top_share"]) for one in table] == [
        (2, 0.5), (3, 0.3333), (1, 1.0),
    ]  # fmt: skip
    whole = describe(federation())
    assert (whole["classes_held_mean"], whole["top_share_mean"]) == (2.0, 0.6111)
    assert (whole["rows"], whole["input"]) == (8, {"shape": [2], "type": "float32"})


def test_arrays_of_clients_are_joined_one_after_the_other() -> None:
    x = lambda n: np.zeros((n, 2), np.float32)
    clients = [Parts((x(2), [0, 1]), test=(x(1), [2])), Parts((x(1), [0]), (x(2), [1, 1]))]
    joined = join_parts(clients, ["a", "b"])
    assert joined.y.tolist() == [0, 1, 0, 1, 1, 2]
    rows = [[list(own) for own in part] for part in joined.rows]
    assert rows == [[[0, 1], [2]], [[], [3, 4]], [[5], []]]
    with pytest.raises(DataError, match="there are no clients"):
        join_parts([], [])
    with pytest.raises(DataError, match=r"b: rows are \[3\] torch.float32, elsewhere \[2\]"):
        join([(x(1), [0]), (np.zeros((1, 3), np.float32), [0])], ["a", "b"])
    with pytest.raises(DataError, match="a: 2 inputs, 1 labels"):
        join([(x(2), [0])], ["a"])


def test_columns_of_targets_are_named_one_by_one() -> None:
    assert target_columns("a, b", LABELS, ["a", "b"]) == ["a", "b"]
    assert target_columns("a, b", LABELS, ["a, b"]) == ["a, b"]
    assert target_columns("a, b", Task(), []) == ["a, b"]
    for label, task in ((("a", "b"), Task()), ((), LABELS)):
        with pytest.raises(DataError, match="has one label"):
            target_columns(label, task, ["a", "b"])
    with pytest.raises(DataError, match="a, a has a column twice"):
        target_columns("a,a", LABELS, ["a"])


def test_an_idx_file_says_that_it_holds_bytes() -> None:
    body = bytes([1, 0, 0, 0, 2]) + b"ab"  # one axis of two
    assert read_idx(b"\0\0\x08" + body, "f").tolist() == [97, 98]
    for wrong in (b"\0\0\x09" + body, b"\0\0\x08", b""):
        with pytest.raises(DataError, match="f is not an idx file of bytes"):
            read_idx(wrong, "f")
