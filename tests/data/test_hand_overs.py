"""Data on their way into a federation: what is refused wherever it comes in, and what is kept."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedblocks.core.errors import DataError
from fedblocks.core.task import CLASSIFICATION, Task
from fedblocks.data.arrays import (
    _as_numbers,
    as_inputs,
    from_numpy,
    name_targets,
)
from fedblocks.data.federation import Federation
from fedblocks.data.pools import DataPool
from fedblocks.data.rows import Rows
from fedblocks.data.sets import idx
from fedblocks.data.sets.own import refuse_other_letters
from fedblocks.data.sets.signals import channel_statistics
from fedblocks.data.splits import split_rows_stratified
from fedblocks.data.storage import read_arrays, write_npz
from fedblocks.data.testbeds.camera import other_camera


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (torch.eye(2).to_sparse(), "x is a sparse tensor"),
        (torch.empty(2, device="meta"), "x is on the device meta"),
        (np.ma.masked_array([1.0, 2.0], [True, False]), "x is a masked array"),
        (torch.tensor([2**63], dtype=torch.uint64), "row 0 of x has 9223372036854775808"),
    ],
    ids=["sparse", "meta", "masked", "wide"],
)
def test_inputs_that_hold_no_numbers_are_refused_by_themselves(values: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        as_inputs(values)


def test_inputs_are_taken_without_their_history() -> None:
    x = torch.ones(2, requires_grad=True)
    assert not as_inputs(x).requires_grad


@pytest.mark.parametrize("part", ["all", "train", "test"])
def test_of_the_compact_file_of_emnist_only_the_test_part_can_be_had(
    part: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def arrays(rows: int) -> dict[str, Any]:
        x = np.full((2, 1, 28, 28), 255, np.uint8)
        return {"x": x, "y": np.array([3, 5], np.uint8), "train_rows": np.array(rows)}

    monkeypatch.setattr(idx, "cached_arrays", lambda *_, split: arrays(1))
    assert idx.emnist("digits", part).y.tolist() == {"all": [3, 5], "train": [3], "test": [5]}[part]
    monkeypatch.setattr(idx, "cached_arrays", lambda *_, split: arrays(0))
    if part == "test":
        pool = idx.emnist("digits", part)
        assert pool.y.tolist() == [3, 5] and pool.classes == 10
        assert (pool.about["name"], pool.about["split"], pool.about["part"]) == (
            "emnist", "digits", "test",
        )  # fmt: skip
        assert pool.about["source"] == idx.EMNIST_HOME
        return
    with pytest.raises(DataError, match="holds the official test part only"):
        idx.emnist("digits", part)


def test_statistics_of_channels_are_in_double_precision_and_a_constant_keeps_its_scale() -> None:
    x = np.array([[[4096.25, 4096.75], [2.0, 2.0]]], np.float32)  # [windows, channels, steps]
    mean, deviation = channel_statistics(x)
    assert mean.tolist() == [4096.5, 2.0] and deviation.tolist() == [0.25, 1.0]
    assert (mean.dtype, deviation.dtype) == (np.float64, np.float64)


def test_a_camera_sees_every_image_alike_however_many_there_are() -> None:
    draw = torch.Generator().manual_seed(0)
    pool = DataPool(
        torch.rand(1030, 1, 2, 2, generator=draw), torch.zeros(1030, dtype=torch.int64), 1
    )
    seen = other_camera(pool, side=3, noise=0.0).x
    for row in (0, 511, 512, 513, 1023, 1024, 1029):
        alone = DataPool(pool.x[row : row + 1], pool.y[:1], 1)
        torch.testing.assert_close(seen[row], other_camera(alone, side=3, noise=0.0).x[0])


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([0.5, np.nan], torch.float32), ([np.inf, -np.inf], torch.float32),
        ([0.1], torch.float64), ([2.0**24 + 1], torch.float64), ([1e300], torch.float64),
    ],
)  # fmt: skip
def test_targets_are_in_single_precision_where_it_holds_the_same_numbers(
    values: list[float], kind: torch.dtype
) -> None:
    given = torch.tensor(values, dtype=torch.float64)
    found = _as_numbers(given)
    assert found.dtype == kind
    assert torch.equal(found.double().nan_to_num(7), given.nan_to_num(7))


def test_a_file_is_with_the_system_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    path = tmp_path / "a.npz"

    def sync(file: int) -> None:
        (draft,) = tmp_path.iterdir()
        seen.append((os.fstat(file).st_size, [*read_arrays(draft)], path.exists()))

    monkeypatch.setattr(os, "fsync", sync)
    write_npz(path, "pool", {}, {"x": np.arange(3)})
    assert seen == [(path.stat().st_size, ["header", "x"], False)]
    assert [one.name for one in tmp_path.iterdir()] == ["a.npz"]


@pytest.mark.parametrize(
    ("make", "files", "classes"),
    [
        (idx.mnist, idx.MNIST, 10), (idx.fashion_mnist, idx.FASHION, 10),
        (idx.mnist_writers, idx.WRITERS, 10),
    ],
    ids=["mnist", "fashion_mnist", "mnist_writers"],
)  # fmt: skip
@pytest.mark.parametrize(("part", "labels"), [("all", [3, 5]), ("train", [3]), ("test", [5])])
def test_pictures_of_a_part_are_scaled_and_say_where_they_come_from(
    make: Any, files: Any, classes: int, part: str, labels: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    arrays = {
        "x": np.full((2, 1, 28, 28), 51, np.uint8), "y": np.array([3, 5], np.uint8),
        "train_rows": np.array(1),
    }  # fmt: skip
    asked: list[Any] = []
    monkeypatch.setattr(idx, "cached_arrays", lambda *chosen: asked.append(chosen) or arrays)
    pool = make(part)
    assert asked[0][0] is files and pool.classes == classes and pool.y.tolist() == labels
    assert pool.x.flatten()[0].item() == pytest.approx((51 / 255 - 0.1307) / 0.3081)
    assert pool.about["name"] == make.__name__ and pool.about["part"] == part
    assert pool.about["source"] in (files.home, idx.WRITERS_HOME)


@pytest.mark.parametrize(
    ("labels", "said"),
    [([-2, -1], "labels go from -2 to -1"), ([0, 0], "classes is 0"), ([], "classes is 0")],
)
def test_labels_below_zero_are_told_from_a_number_of_classes(labels: Any, said: str) -> None:
    y = torch.tensor(labels, dtype=torch.int64)
    rows = Rows.none(0)
    with pytest.raises(DataError, match=said):
        Federation(torch.zeros(len(y), 1), y, rows, rows, rows, classes=0)


@pytest.mark.parametrize(
    ("labels", "numbers", "words"),
    [
        (["b", "a", "b"], [1, 0, 1], ["a", "b"]),
        (("b", "a"), [1, 0], ["a", "b"]),
        (np.array(["b", "a"]), [1, 0], ["a", "b"]),
        (np.array(["b", "a"], object), [1, 0], ["a", "b"]),
        ([["b", "a"], ["c", "c"]], [[1, 0], [2, 2]], ["a", "b", "c"]),
        ([2, 0], [2, 0], []),
        (torch.tensor([2, 0]), [2, 0], []),
        (np.array([2, 0], object), [2, 0], []),
        ([], [], []),
    ],
)
def test_labels_that_are_words_are_numbered_in_the_order_of_the_alphabet(
    labels: Any, numbers: Any, words: list[str]
) -> None:
    found, names = name_targets(labels, CLASSIFICATION)
    assert np.asarray(found).tolist() == numbers and names == words
    assert name_targets(labels, Task("regression"))[0] is labels


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (["1", 1], r"several types, such as 1 \(int\) and '1' \(str\)"),
        (("a", 2.5), r"several types, such as 2.5 \(float\) and 'a' \(str\)"),
        (np.array(["a", 1], object), "labels are of several types"),
        ([b"a", b"b"], "labels are bytes, such as b'a'"),
        (np.array([b"a"]), "labels are bytes, such as b'a'"),
    ],
)
def test_words_beside_numbers_and_bytes_are_refused(labels: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        name_targets(labels, CLASSIFICATION)


@pytest.mark.parametrize("bad", [{"side": 0}, {"blur": 0.0}, {"side": -1}])
def test_a_camera_has_a_side_and_a_blur(bad: dict[str, Any]) -> None:
    pool = DataPool(torch.zeros(1, 1, 2, 2), torch.zeros(1, dtype=torch.int64), 1)
    with pytest.raises(DataError, match=next(iter(bad))):
        other_camera(pool, **bad)


def test_a_column_of_users_in_other_letters_is_no_feature() -> None:
    for names in (["a", " User "], ["USER"], ["user "]):
        with pytest.raises(DataError, match='has no column "user", but one that is called'):
            refuse_other_letters("a table", "user", names)
    refuse_other_letters("a table", "user", ["a", "user", "User"])
    refuse_other_letters("a table", "user", ["a", "users"])


@pytest.mark.parametrize(
    ("lengths", "said"),
    [
        ({"y": 2}, "y"), ({"users": 2}, "users"), ({"coarse": 4}, "coarse"), ({"x": 2}, "x"),
    ],
)  # fmt: skip
def test_all_that_a_pool_holds_has_as_many_rows(lengths: dict[str, int], said: str) -> None:
    rows = {"x": 3, "y": 3, "users": 3, "coarse": 3, **lengths}
    with pytest.raises(DataError, match=rf"\b{said}\b"):
        DataPool(
            torch.zeros(rows["x"], 1), torch.zeros(rows["y"], dtype=torch.int64), 1,
            users=np.zeros(rows["users"]), coarse=np.zeros(rows["coarse"], np.int64),
        )  # fmt: skip


def test_a_stratified_split_of_nothing_is_nothing() -> None:
    parts = split_rows_stratified(Rows.none(2), np.zeros(0, np.int64), (0.5, 0.25, 0.25), 0)
    assert [part.sizes.tolist() for part in parts] == [[0, 0]] * 3


def test_numbers_that_int64_does_not_hold_are_refused_wherever_they_come_in() -> None:
    wide = np.array([1, 2**63], np.uint64)
    with pytest.raises(DataError, match="row 1 of y has 9223372036854775808, too large for int64"):
        from_numpy(wide, "y")
    assert from_numpy(np.array([2**63 - 1], np.uint64)).tolist() == [2**63 - 1]
    fixed = np.arange(3.0)
    fixed.flags.writeable = False
    from_numpy(fixed)[0] = 7.0
    assert fixed.tolist() == [0.0, 1.0, 2.0]  # what cannot be written to is copied
