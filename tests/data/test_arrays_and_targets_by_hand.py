"""Refusals and conversions of arrays, pools and targets, each asked directly."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedblocks.core.errors import DataError
from fedblocks.core.task import CLASSIFICATION, Task
from fedblocks.data import storage
from fedblocks.data.arrays import (
    as_inputs,
    as_targets,
    from_numpy,
    name_targets,
    warn_of_lost_digits,
)
from fedblocks.data.federation import Federation
from fedblocks.data.images import bilinear
from fedblocks.data.pools import DataPool
from fedblocks.data.rows import Rows
from fedblocks.data.saved import _mark
from fedblocks.data.storage import read_columns, write_npz
from fedblocks.data.targets import is_one_hot
from fedblocks.data.torch_data import _read_item
from fedblocks.data.user_ids import user_ids

REGRESSION = Task("regression")


def test_targets_stay_short_where_float32_holds_them_even_infinite_ones() -> None:
    assert as_targets(np.array([1.5, np.inf, np.nan]), REGRESSION).dtype == torch.float32
    assert as_targets(np.array([0.1, np.inf]), REGRESSION).dtype == torch.float64
    assert as_targets(np.array([1e39]), REGRESSION).dtype == torch.float64  # inf in float32


def test_words_beside_numbers_in_a_list_are_told_by_their_types() -> None:
    with pytest.raises(DataError, match=r"several types, such as 1 \(int\) and 'a' \(str\)"):
        name_targets(["a", 1], CLASSIFICATION)
    with pytest.raises(DataError, match=r"several types, such as 1\.5 \(float\) and 2 \(int\)"):
        name_targets(np.array([2, "b", 1.5], dtype=object), CLASSIFICATION)


@pytest.mark.parametrize(
    ("refuse", "message"),
    [
        (lambda: as_inputs(torch.eye(2).to_sparse(), "z"), "z is a sparse tensor"),
        (lambda: as_inputs(np.ma.array([1, 2], mask=[0, 1]), "z"), "z is a masked array, and row"),
        (lambda: from_numpy(np.array([1, 2**63], np.uint64), "z"),
         "row 1 of z has 9223372036854775808,"),
        (lambda: from_numpy(np.array(["a"]), "z"), "z: arrays of type <U1 cannot be inputs"),
        (lambda: as_inputs(torch.tensor([2**63], dtype=torch.uint64), "z"), "row 0 of z has"),
        (lambda: name_targets(np.ma.array(["a", "b"], mask=[0, 1]), CLASSIFICATION),
         "y is a masked array, and row 1 of it is masked"),
        (lambda: name_targets(torch.eye(2).to_sparse(), CLASSIFICATION), "y is a sparse tensor"),
        (lambda: as_targets(np.ma.array([1, 2], mask=[1, 0])), "y is a masked array, and row 0"),
    ],
)  # fmt: skip
def test_arrays_that_are_none_are_refused_by_every_way_in(refuse: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        refuse()


def remarks_on_digits(values: list[float]) -> list[str]:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        warn_of_lost_digits(np.array(values)[:, None])
    return [str(one.message) for one in told]


def test_differences_are_lost_digits_unless_they_are_rounding_of_float64_itself() -> None:
    """Of a column around 1e9, a deviation below 1e-14 * 1e9 = 1e-5 is rounding."""
    assert remarks_on_digits([1e9, 1e9 + 4e-6] * 4) == []
    assert "subtract the mean" in remarks_on_digits([1e9, 1e9 + 4e-3] * 4)[0]
    small = remarks_on_digits([-1e-60, 1e-60] * 4)  # nothing at all in float32
    assert "column 0 of x has values around -1e-60" in small[0]
    assert small[0].endswith("scale the column before")


@pytest.mark.parametrize(
    ("label", "message"), [(0, "classes is 0"), (-1, "labels go from -1 to -1")]
)
def test_no_classes_are_told_by_the_labels_where_these_are_all_below_0(
    label: int, message: str
) -> None:
    y, rows = torch.full((2,), label), Rows.of([[0, 1]])
    with pytest.raises(DataError, match=message):
        Federation(torch.zeros(2, 3), y, rows, Rows.none(1), Rows.none(1), 0)


def test_a_turn_says_how_corners_are_aligned() -> None:
    """Turned by 180 degrees the slow way, every pixel is in its opposite place."""
    image = torch.arange(12.0).reshape(1, 1, 3, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.allclose(bilinear(image, 180), image.flip(2, 3), atol=1e-5)
        assert bilinear(image[:0], 30).shape == (0, 1, 3, 4)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"y": torch.zeros(2)}, "x has 3 rows and y has 2"),
        ({"users": np.zeros(4, np.int64)}, "x has 3 rows and users has 4"),
        ({"coarse": np.zeros(2, np.int64)}, "x has 3 rows and coarse has 2"),
    ],
)
def test_all_parts_of_a_pool_have_as_many_rows(more: Any, message: str) -> None:
    whole = {"x": torch.zeros(3, 2), "y": torch.zeros(3, dtype=torch.int64), "classes": 1}
    DataPool(**whole, topics=np.zeros(7, np.int64))  # topics are of users
    with pytest.raises(DataError, match=message):
        DataPool(**whole | more)


def test_a_tensor_that_takes_part_in_training_has_the_mark_of_its_numbers() -> None:
    plain = torch.arange(3.0)
    assert _mark(plain.clone().requires_grad_()) == _mark(plain) != _mark(plain + 1)
    versions = _mark(plain, in_file=True)
    plain += 1
    assert _mark(plain, in_file=True) == versions + 1  # a file is not read


def test_what_a_file_holds_is_listed_in_order(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", z=np.ones(1), b=np.zeros(2), k=np.ones(1))
    with pytest.raises(DataError, match=r"a\.npz has no array y\n.*it holds b, k, z: name"):
        read_columns(tmp_path / "a.npz", ["z", "y"])
    columns = read_columns(tmp_path / "a.npz", ["z", "b"])
    assert [column.tolist() for column in columns] == [[1.0], [0.0, 0.0]]


def test_all_bytes_are_with_the_disk_before_a_file_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, sizes = tmp_path / "a.npz", []

    def synced(handle: int) -> None:
        sizes.append(os.fstat(handle).st_size)
        assert not path.exists()

    monkeypatch.setattr(storage.os, "fsync", synced)
    write_npz(path, "Toy", {"a": 1}, {"x": np.arange(3)})
    assert sizes == [path.stat().st_size] and [p.name for p in tmp_path.iterdir()] == ["a.npz"]


@pytest.mark.parametrize(
    ("y", "answer"),
    [
        ([[1, 0], [0, 1]], True),
        ([[1, 0], [2, -1]], False),  # sums are 1
        ([[1, 0], [1, 0]], True),
        ([[1, 0], [1, 1]], False),
        ([[1, 1], [0, 0]], False),
        ([[1], [1]], False),
        ([1, 0], False),
    ],
)
def test_one_hot_rows_have_a_single_1_among_zeros(y: Any, answer: bool) -> None:
    federation: Any = SimpleNamespace(y=torch.tensor(y), task=CLASSIFICATION)
    assert is_one_hot(federation) is answer
    steps: Any = SimpleNamespace(y=torch.tensor(y), task=Task("sequence-labelling"))
    assert not is_one_hot(steps)


def test_an_item_has_one_input_or_several_fields() -> None:
    item = {"image": [1, 2], "label": 3, "user": "u"}
    assert _read_item(item, "label", "user") == ([1, 2], 3, "u")
    assert _read_item(item, "label", "who") == ({"image": [1, 2], "user": "u"}, 3, None)
    assert _read_item(([1], 2), "label", "user") == ([1], 2, None)
    with pytest.raises(DataError, match='the items of the data set have no field "target"'):
        _read_item(item, "target", "user")


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_a_missing_id_among_objects_is_told_by_its_row(missing: Any) -> None:
    with pytest.raises(DataError, match=rf"the user id of row 1 is {missing}\n"):
        user_ids(np.array(["a", missing, "b"], dtype=object))
