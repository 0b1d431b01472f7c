"""Small parts of data sets in files, each with a few rows made up by hand."""

from __future__ import annotations

import hashlib
import pickle
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedblocks.core.errors import DataError
from fedblocks.core.task import Task
from fedblocks.data.sets import cache, har, hugging_face, idx, realworld
from fedblocks.data.sets.columns import Roles, _known, _numbers, _targets
from fedblocks.data.sets.download import fetch
from fedblocks.data.sets.files import File
from fedblocks.data.sets.own import refuse_other_letters
from fedblocks.data.sets.parquet import as_column
from fedblocks.data.sets.python_batches import ARRAY, TYPE, MadeObject, plain, read_batch
from fedblocks.data.sets.signals import channel_statistics


@pytest.mark.parametrize("damaged", ["a", "b"])
def test_a_cache_with_one_damaged_array_is_read_anew(damaged: str, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "kept"
    cache.write(folder, {"a": np.arange(3), "b": np.ones((2, 2))})
    kept = cache.read(folder)
    assert kept is not None and list(kept) == ["a", "b"]
    assert kept["a"].tolist() == [0, 1, 2] and not kept["b"].flags.writeable
    np.save(folder / f"{damaged}.npy", np.zeros(3))
    assert cache.read(folder) is None and cache.read(tmp_path) is None


def test_a_missing_value_is_told_by_its_row() -> None:
    for column, row in (([1, None, 2], 1), ([None, None], 0)):
        with pytest.raises(DataError, match=f'row {row} of "a" in t has no value'):
            _numbers("t", "a", np.array(column, dtype=object))
    assert _numbers("t", "a", np.array([1, 2], dtype=object)).tolist() == [1, 2]
    zero = np.array([0, 1, 0], dtype=object)  # a number, and not a field without a value
    assert _targets("t", {"a": zero}, Task(), ["n", "y"])[0].tolist() == [0, 1, 0]
    for words in (["b", ""], ["b", None]):
        with pytest.raises(DataError, match='there is no value in column "a", row 1 of t'):
            _targets("t", {"a": np.array(words, dtype=object)}, Task(), ())
    known = _known("t", "a", np.array([1, None], dtype=object))
    assert known.dtype == np.float64 and known[0] == 1 and np.isnan(known[1])
    assert _known("t", "a", np.array([1, 2], np.int8)).dtype == np.float64
    with pytest.raises(DataError, match='"2026-01-02" in column "a", row 0 of t, is not a number'):
        _known("t", "a", np.array([date(2026, 1, 2)], dtype=object))


def test_a_file_is_fetched_into_folders_that_are_made_for_it(tmp_path: Path) -> None:
    source, folder = tmp_path / "source.bin", tmp_path / "one" / "two"
    source.write_bytes(b"abc")
    file = File("a.bin", 3, hashlib.sha256(b"abc").hexdigest(), source.as_uri())
    for _ in range(2):  # the second time it is there
        assert fetch(file, folder, "home") == folder / "a.bin"
    assert [path.name for path in folder.iterdir()] == ["a.bin"]
    assert (folder / "a.bin").read_bytes() == b"abc"
    assert (folder / "a.bin").stat().st_mode & 0o777 == 0o644
    with pytest.raises(DataError, match=r"did not give the official b\.bin"):
        fetch(File("b.bin", 4, "", source.as_uri()), folder, "home")
    assert [path.name for path in folder.iterdir()] == ["a.bin"]


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        (har.wisdm51_recordings,
         (har.WATCH, har.watch_compact, har.WATCH_ACTIVITIES, 20, "wisdm51_watch")),
        (har.hapt_recordings, (har.HAPT, None, har.HAPT_ACTIVITIES, 50, "hapt")),
        (realworld.realworld_recordings,
         (realworld.FILES, realworld.read, realworld.ACTIVITIES, 50, "realworld")),
    ],
)  # fmt: skip
def test_recordings_are_asked_for_with_their_reader_activities_and_rate(
    load: Any, expected: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (har, realworld):
        monkeypatch.setattr(module, "cached_recordings", lambda *given: given)
    given = load()
    assert given[0] is expected[0] and given[2:] == expected[2:]
    assert expected[1] in (None, given[1])


def test_activities_of_realworld_are_named_as_those_of_other_data_sets() -> None:
    assert (
        *("walking", "upstairs", "downstairs", "sitting", "standing", "laying"),
        *("jumping", "running"),
    ) == realworld.ACTIVITIES


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_what_columns_are_for_is_handed_on(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hugging_face, "load_saved", lambda *given: given)
    monkeypatch.setattr(hugging_face, "data_set_pool", lambda *given: given)
    chosen: Any = {"label": "a", "user": "b", "columns": ["c", "d"], "part": "p"}
    handed: Any = hugging_face.saved_data_set("here", **chosen, task=Task(task))
    assert handed == (("here", "p"), Roles("a", "b", ("c", "d"), Task(task)), "here")


ARRAYS = {
    "x": np.zeros((3, 1, 28, 28), np.uint8),
    "y": np.array([0, 1, 2], np.uint8),
    "train_rows": np.array(2),
}


@pytest.mark.parametrize(
    ("load", "name", "classes"),
    [
        (idx.mnist, "mnist", 10), (idx.fashion_mnist, "fashion_mnist", 10),
        (idx.mnist_writers, "mnist_writers", 10), (idx.emnist, "emnist", 62),
    ],
)  # fmt: skip
def test_images_of_28_pixels_have_their_classes_and_parts(
    load: Any, name: str, classes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idx, "cached_arrays", lambda *_, **__: ARRAYS)
    pool, test = load(), load(part="test")
    assert (pool.classes, pool.about["name"], pool.about["part"]) == (classes, name, "all")
    assert pool.about["train_rows"] == 2 and pool.y.tolist() == [0, 1, 2]
    assert test.y.tolist() == [2] and test.about["train_rows"] == 0
    assert pool.x.unique().tolist() == pytest.approx([-0.1307 / 0.3081])


@pytest.mark.parametrize("part", ["all", "train"])
def test_the_compact_letters_have_a_test_part_only(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tests = {**ARRAYS, "train_rows": np.array(0)}
    monkeypatch.setattr(idx, "cached_arrays", lambda *_, **__: tests)
    assert len(idx.emnist(part="test").y) == 3
    with pytest.raises(DataError, match="holds the official test part only"):
        idx.emnist(part=part)  # type: ignore[arg-type]


@pytest.mark.parametrize("other", ["User", " USER "])
def test_a_column_of_users_in_other_letters_is_refused(other: str) -> None:
    with pytest.raises(DataError, match=f'no column "user", but one that is called "{other}"'):
        refuse_other_letters("a.csv", "user", ["x", other])
    refuse_other_letters("a.csv", "user", ["x", other, "user"])
    refuse_other_letters("a.csv", "user", ["x", "users"])


def test_columns_of_pyarrow_become_arrays_or_objects() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    truths = as_column(pyarrow.array([True, False, True]))
    assert truths.dtype == bool and truths.tolist() == [True, False, True]
    several = as_column(pyarrow.chunked_array([[1, 2], [3]]))
    assert several.dtype == np.int64 and several.tolist() == [1, 2, 3]
    for values in ([1, None], ["a", "b"], [[1], [2]]):
        column = as_column(pyarrow.array(values))
        assert column.dtype == object and column.tolist() == values


@pytest.mark.parametrize("labels", [[], [7], [7, 300, -1], [True, False, None]])
def test_lists_of_a_batch_are_as_they_were_written(labels: list[Any]) -> None:
    """A list of one value is written by another instruction than one of several."""
    batch = {"labels": labels, "name": b"x" * 300}
    assert read_batch(pickle.dumps(batch, 3), "b") == batch


@pytest.mark.parametrize(
    ("name", "kind", "arguments", "data", "fits"),
    [
        (ARRAY[0], TYPE, ("u1",), b"abcd", True), (ARRAY[1], TYPE, (b"u1",), b"abcd", True),
        (TYPE, TYPE, ("u1",), b"abcd", False), (ARRAY[0], ARRAY[0], ("u1",), b"abcd", False),
        (ARRAY[0], TYPE, ("i8",), b"abcd", False), (ARRAY[0], TYPE, ("u1",), "abcd", False),
    ],
)  # fmt: skip
def test_an_array_of_a_batch_holds_bytes(
    name: str, kind: str, arguments: tuple[Any, ...], data: Any, fits: bool
) -> None:
    made = [
        MadeObject(name, (), (1, (2, 2), MadeObject(kind, arguments), by_column, data))
        for by_column in (False, True)
    ]
    if fits:
        assert plain(made[0]).tolist() == [[97, 98], [99, 100]]
        assert plain(made[1]).tolist() == [[97, 99], [98, 100]]
        return
    with pytest.raises(ValueError, match="an array of another type than bytes"):
        plain(made[0])


def test_statistics_are_taken_in_double_precision() -> None:
    """Half 1e8, half 1e8 + 8: mean 1e8 + 4, deviation 4. float32 has no number between them."""
    x = np.array([[[1e8, 1e8 + 8], [3, 3]]], np.float32)
    mean, deviation = channel_statistics(x)
    assert mean.tolist() == [1e8 + 4, 3] and deviation.tolist() == [4, 1]
    assert mean.dtype == deviation.dtype == np.float64
