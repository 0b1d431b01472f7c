"""Labels that are not known, negative or whole with a point: read alike from tables, parquet files
and arrays.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedblocks import Federation
from fedblocks.core.errors import DataError
from fedblocks.data import Parts

X = np.linspace(0, 1, 24, dtype="float32")[:, None]
USERS = np.array([f"u{row % 3}" for row in range(24)])
ALL = (1.0, 0.0, 0.0)


def as_csv(labels: Sequence[Any], folder: Path) -> Federation:
    lines = [f"{x!r},{label},{user}" for x, label, user in zip(X[:, 0].tolist(), labels, USERS)]
    (folder / "t.csv").write_text("\n".join(["a,label,user", *lines]))
    return Federation.from_csv(folder / "t.csv", split=ALL)


def as_parquet(labels: Sequence[Any], folder: Path) -> Federation:
    pa = pytest.importorskip("pyarrow", reason="pip install 'fedblocks[parquet]'")
    from pyarrow import parquet

    parquet.write_table(
        pa.table({"a": X[:, 0], "label": labels, "user": USERS}), folder / "t.parquet"
    )
    return Federation.from_parquet(folder / "t.parquet", split=ALL)


def as_arrays(labels: Sequence[Any], folder: Path) -> Federation:
    return Federation.from_users(X, np.array(labels), USERS, split=ALL)


WAYS = pytest.mark.parametrize("read", [as_csv, as_parquet, as_arrays])
Read = Callable[[Sequence[Any], Path], Federation]


@WAYS
@pytest.mark.parametrize("kind", [int, float])
def test_minus_100_is_not_scored_in_any_format(read: Read, kind: type, tmp_path: Path) -> None:
    labels = [kind([0, 1, -100][row % 3]) for row in range(24)]
    data = read(labels, tmp_path)
    assert data.y.tolist() == labels and data.classes == 2 and not data.about.get("class_names")
    assert "8 targets are missing (-100) and are not scored" in data.warnings()


@WAYS
def test_minus_100_among_words_is_not_scored_in_any_format(read: Read, tmp_path: Path) -> None:
    data = read(["cat", "ant", "-100"] * 8, tmp_path)
    assert data.about["class_names"] == ["ant", "cat"] and data.classes == 2
    assert data.y.tolist() == [1, 0, -100] * 8


@WAYS
@pytest.mark.parametrize("kind", [int, float])
def test_other_negative_labels_are_refused_in_every_format(
    read: Read, kind: type, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="row 1 has label -1") as told:
        read([kind(label) for label in (0, -1)] * 12, tmp_path)
    assert "number the classes from 0" in told.value.fix


@WAYS
def test_whole_numbers_with_a_point_are_numbers_in_every_format(read: Read, tmp_path: Path) -> None:
    data = read([float(row % 12) for row in range(24)], tmp_path)
    assert data.y.tolist() == [row % 12 for row in range(24)]  # by size, not by the alphabet


@WAYS
@pytest.mark.parametrize("nothing", ["", " ", "nan", "NaN"])
def test_a_word_that_says_nothing_is_no_label_in_any_format(
    read: Read, nothing: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=r"there is no (label|value)") as told:
        read(["cat", "ant", nothing] * 8, tmp_path)
    assert "-100" in told.value.fix


@WAYS
@pytest.mark.parametrize("nothing", ["NA", "n/a", "None", "null", "?"])
def test_not_known_among_numbers_is_refused_in_every_format(
    read: Read, nothing: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError) as told:
        read(["0", "1", nothing] * 8, tmp_path)
    assert told.value.message == f'the label "{nothing}" stands among numbers'
    assert "write -100" in told.value.fix


@WAYS
@pytest.mark.parametrize("word", ["NA", "n/a", "null", "?"])
def test_not_known_among_words_is_a_class_and_a_warning(
    read: Read, word: str, tmp_path: Path
) -> None:
    with pytest.warns(UserWarning, match="is taken as a class like the others") as told:
        data = read(["cat", "ant", word] * 8, tmp_path)
    assert f'"{word}"' in str(told[0].message) and "-100" in str(told[0].message)
    assert sorted(data.about["class_names"]) == sorted(["cat", "ant", word])


@WAYS
def test_none_among_words_is_a_class_without_a_word(read: Read, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = read(["mild", "severe", "none"] * 8, tmp_path)
    assert data.about["class_names"] == ["mild", "none", "severe"]


@WAYS
def test_labels_of_which_none_is_known_are_refused_with_the_reason(
    read: Read, tmp_path: Path
) -> None:
    with pytest.raises(DataError) as told:
        read([-100] * 24, tmp_path)
    assert told.value.message == (
        "all labels are -100, which stands for 'not known': nothing can be learned"
    )
    assert told.value.fix == "give the labels that are known"


def test_a_label_that_is_not_a_number_is_refused_in_arrays_and_parquet(tmp_path: Path) -> None:
    for read in (as_arrays, as_parquet):
        with pytest.raises(DataError, match="labels are not whole numbers: one is nan"):
            read([0.0, 1.0, np.nan] * 8, tmp_path)


def test_clients_of_which_one_knows_no_label_have_the_numbering_of_the_others() -> None:
    def part(labels: Any) -> Parts:
        return Parts(train=(X[: len(labels)], np.array(labels)))

    known = part(["cat", "-100", "bee"])
    for unknown in (["-100", "-100"], [-100, -100]):
        data = Federation.from_parts([known, part(unknown), part(["ant"])])
        assert data.about["class_names"] == ["ant", "bee", "cat"]
        assert data.y.tolist() == [2, -100, 1, -100, -100, 0]


def test_a_sequence_of_words_may_have_steps_that_are_not_scored() -> None:
    y = np.array([["noun", "verb"], ["verb", "-100"]] * 6)
    data = Federation.from_users(X[:12], y, USERS[:12], split=ALL)
    assert data.y.tolist() == [[0, 1], [1, -100]] * 6
